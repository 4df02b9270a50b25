"""The numbers of a store's entries as arrays, row by row beside the vectors: what rules compute with.

A cache like the vectors: all of it follows from the entries. It is made when a rule first asks, then kept up to date.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from atommem.errors import ConfigError
from atommem.memory.entries import Entry
from atommem.memory.index import VectorIndex
from atommem.memory.neighbours import Neighbours

Numbers = npt.NDArray[np.float64]
_DETAILS = ("steps",)
"""Numbers that rules know in `Entry.details`."""
_FIRST_ROWS = 16


_NUMERIC = ("int", "float", "int | None", "float | None")


class Columns:
    """The numeric fields of entries, aligned with the rows of their vectors; NaN stands for None.

    Args:
        entries: By id.
        index: The vectors of the same ids; its order of rows is followed.
        kind: The entries' class.
    """

    def __init__(self, entries: Mapping[int, Entry], index: VectorIndex, kind: type[Entry] = Entry) -> None:
        self.names = (*(item.name for item in fields(kind) if item.type in _NUMERIC), *_DETAILS)
        self._entries, self._index = entries, index
        self._size = len(index)
        self._table = np.full((len(self.names), max(_FIRST_ROWS, self._size)), np.nan)
        for place, entry_id in enumerate(index.ids.tolist()):
            self._table[:, place] = self._row(entries[entry_id])
        self._nearest: Neighbours | None = None

    def column(self, name: str) -> Numbers:
        """One field of all entries, shape (n,): a view that is not to be changed."""
        if name not in self.names:
            raise ConfigError(f"entries have no number {name!r}: rules can ask for {', '.join(self.names)}.")
        return self._table[self.names.index(name), : self._size]

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
                    self._table = np.concatenate([self._table, np.full_like(self._table, np.nan)], axis=1)
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
        details = entry.details or {}
        values = [getattr(entry, name) for name in self.names[: -len(_DETAILS)]] + [details.get(n) for n in _DETAILS]
        return [np.nan if value is None else value for value in values]
