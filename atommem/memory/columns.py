"""The numbers of a store's entries as arrays, row by row beside the vectors: what rules compute with.

A cache like the vectors: all of it follows from the entries. It is made when a rule first asks, then kept up to date.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from atommem.errors import ConfigError
from atommem.memory.entries import Entry
from atommem.memory.index import VectorIndex
from atommem.memory.neighbours import Neighbours

Numbers = npt.NDArray[np.float64]
_DETAILS = ("steps",)
"""Numbers that rules know in `Entry.details`."""
_ATTRIBUTES = [
    item.name
    for item in fields(Entry)
    if item.type in ("int", "float", "int | None", "float | None")
]
_attributes_of = attrgetter(*_ATTRIBUTES)
_FIRST_ROWS = 16


def known_number(entry: Entry, name: str) -> float | None:
    """A number in an entry's details, None where there is none."""
    value = (entry.details or {}).get(name)
    return value if isinstance(value, (int, float)) else None


class Columns:
    """The numeric fields of entries, aligned with the rows of their vectors; NaN stands for None.

    Args:
        entries: By id.
        index: The vectors of the same ids; its order of rows is followed.
    """

    names = (*_ATTRIBUTES, *_DETAILS)

    def __init__(self, entries: Mapping[int, Entry], index: VectorIndex) -> None:
        self._functions: list[Callable[[Entry], float]] = []
        self._rows: dict[object, int] = {name: row for row, name in enumerate(self.names)}
        self._entries, self._index = entries, index
        self._size = len(index)
        self._table = np.full((len(self.names), max(_FIRST_ROWS, self._size)), np.nan)
        for place, entry_id in enumerate(index.ids.tolist()):
            self._table[:, place] = self._row(entries[entry_id])
        self._nearest: Neighbours | None = None

    def column(self, name: str) -> Numbers:
        """One field of all entries, shape (n,): a view that is not to be changed."""
        row = self._rows.get(name)
        if row is None:
            raise ConfigError(
                f"entries have no number {name!r}: rules can ask for {', '.join(self.names)}."
            )
        return self._table[row, : self._size]

    def computed(self, function: Callable[[Entry], float]) -> Numbers:
        """As `column`, of a function of an entry alone: called once for each entry that is new or has changed."""
        row = self._rows.get(function)
        if row is None:
            row = self._rows[function] = len(self._table)
            self._functions.append(function)
            self._table = np.concatenate([self._table, np.full_like(self._table[:1], np.nan)])
            self._table[row, : self._size] = [
                function(self._entries[i]) for i in self._index.ids.tolist()
            ]
        return self._table[row, : self._size]

    @property
    def neighbours(self) -> Neighbours:
        """How like each other the entries are."""
        if self._nearest is None:
            self._nearest = Neighbours(self._index)
        return self._nearest

    def follow(self, entry_id: int, entries: Mapping[int, Entry], moved: bool) -> None:
        """Take over what became of one entry, after contents and index have changed.

        Args:
            entry_id: The one that was created, changed or deleted.
            entries: The contents after it (a copy may have taken the place of those that were given at first).
            moved: Its vector is new, or gone; else only its numbers changed.
        """
        self._entries = entries
        entry = entries.get(entry_id)
        if entry is None:
            self._remove()
        else:
            place = self._index.place(entry_id)
            if place == self._size:
                self._size += 1
                if self._size > self._table.shape[1]:
                    self._table = np.concatenate(
                        [self._table, np.full_like(self._table, np.nan)], axis=1
                    )
            self._table[:, place] = self._row(entry)
        if moved and self._nearest is not None:
            self._nearest.follow(entry_id)

    def _remove(self) -> None:
        """The index has filled the row of an entry that is gone with its last one."""
        self._size -= 1
        place = self._index.hole
        if place < self._size:
            self._table[:, place] = self._table[:, self._size]

    def _row(self, entry: Entry) -> list[float]:
        values = [*_attributes_of(entry), *[known_number(entry, name) for name in _DETAILS]]
        values += [function(entry) for function in self._functions]
        return [np.nan if value is None else value for value in values]
