"""The numbers of a store's entries as arrays, row by row beside the vectors: what rules compute with.

A cache like the vectors: all of it follows from the entries. It is made when a rule first asks, then kept up to date.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from atommem.embedding.embedder import Vectors
from atommem.errors import ConfigError
from atommem.memory.entries import Entry
from atommem.memory.index import VectorIndex

Numbers = npt.NDArray[np.float64]
_FIRST_ROWS = 16
_ROWS_AT_ONCE = 512


_NUMERIC = ("int", "float", "int | None", "float | None")


class Columns:
    """The numeric fields of entries, aligned with the rows of their vectors; NaN stands for None.

    Args:
        entries: By id.
        index: The vectors of the same ids; its order of rows is followed.
        kind: The entries' class.
    """

    def __init__(self, entries: Mapping[int, Entry], index: VectorIndex, kind: type[Entry] = Entry) -> None:
        self.names = tuple(item.name for item in fields(kind) if item.type in _NUMERIC)
        self._entries, self._index = entries, index
        self._size = len(index)
        self._table = np.full((max(_FIRST_ROWS, self._size), len(self.names)), np.nan)
        for place, entry_id in enumerate(index.ids.tolist()):
            self._table[place] = self._row(entries[entry_id])
        self._nearest: Neighbours | None = None

    def column(self, name: str) -> Numbers:
        """One field of all entries, shape (n,): a view that is not to be changed."""
        if name not in self.names:
            raise ConfigError(f"entries have no number {name!r}: rules can ask for {', '.join(self.names)}.")
        return self._table[: self._size, self.names.index(name)]

    def nearest(self) -> Vectors:
        """The highest cosine of each entry to another one, shape (n,); -1 where there is no other."""
        if self._nearest is None:
            self._nearest = Neighbours(self._index)
        return self._nearest.cosines(self._size)

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
                if self._size > len(self._table):
                    self._table = np.concatenate([self._table, np.full_like(self._table, np.nan)])
            self._table[place] = self._row(entry)
        if moved and self._nearest is not None:
            self._nearest.follow(entry_id)

    def _remove(self) -> None:
        """The index has filled the row of an entry that is gone with its last one."""
        self._size -= 1
        place = self._index.hole
        if place < self._size:
            self._table[place] = self._table[self._size]

    def _row(self, entry: Entry) -> list[float]:
        return [np.nan if (value := getattr(entry, name)) is None else value for name in self.names]


class Neighbours:
    """For each row of an index the most similar other one, kept up to date one change at a time.

    A new vector costs one product with all rows; one that goes costs a product for every row that it was nearest to.
    """

    def __init__(self, index: VectorIndex) -> None:
        self._index = index
        size = len(index)
        self._cosines = np.full(max(_FIRST_ROWS, size), -1, dtype=np.float32)
        self._ids = np.zeros(len(self._cosines), dtype=np.int64)
        self._size = size
        for first in range(0, size, _ROWS_AT_ONCE):
            self._search(np.arange(first, min(size, first + _ROWS_AT_ONCE)))

    def cosines(self, size: int) -> Vectors:
        """Shape (n,)."""
        return self._cosines[:size]

    def follow(self, entry_id: int) -> None:
        """As `Columns.follow`, for a vector that is new, changed or gone."""
        index = self._index
        if entry_id not in index:
            self._size -= 1
            place = index.hole
            if place < self._size:
                self._cosines[place], self._ids[place] = self._cosines[self._size], self._ids[self._size]
            self._search(np.flatnonzero(self._ids[: self._size] == entry_id))
            return
        place = index.place(entry_id)
        if place == self._size:
            self._size += 1
            if self._size > len(self._cosines):
                self._cosines = np.concatenate([self._cosines, np.full_like(self._cosines, -1)])
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
        else:
            self._search(np.flatnonzero(self._ids[: self._size] == entry_id))
        found = index.cosines(index.vector(entry_id))
        found[place] = -1
        best = int(found.argmax())
        self._cosines[place], self._ids[place] = found[best], index.ids[best] if self._size > 1 else 0
        nearer = found > self._cosines[: self._size]
        nearer[place] = False
        self._cosines[: self._size][nearer], self._ids[: self._size][nearer] = found[nearer], entry_id

    def _search(self, places: npt.NDArray[np.int64]) -> None:
        """Look the nearest of some rows up among all."""
        if not len(places):
            return
        ids = self._index.ids
        found = self._index.products(self._index.vectors(ids[places].tolist()))
        found[np.arange(len(places)), places] = -1
        best = found.argmax(axis=1)
        self._cosines[places] = found[np.arange(len(places)), best]
        self._ids[places] = ids[best] if len(ids) > 1 else 0
