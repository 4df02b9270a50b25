"""How like each other the vectors of a store are, kept up to date one change at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from atommem.embedding.embedder import Vectors
from atommem.memory.index import VectorIndex

_NONE = np.zeros(0, dtype=np.int64)
_FIRST_ROWS = 16
_ROWS_AT_ONCE = 512
_MOST_HELD = 2048
"""Rows up to which all cosines are held (16 MiB): a vector that goes then costs no product."""


class Neighbours:
    """For each row of an index the most similar other one, and its mean cosine to the others.

    A new vector costs a product with all rows. One that goes costs, in a store too large to hold all cosines, a product
    for every row that it was nearest to: of rows that are equally near the newest is taken, and rules drop the oldest.
    """

    def __init__(self, index: VectorIndex) -> None:
        self._index = index
        self._size = size = len(index)
        room = max(_FIRST_ROWS, size)
        self._cosines = np.full(room, -1, dtype=np.float32)
        self._ids = np.zeros(room, dtype=np.int64)
        self._sums = np.zeros(room)
        self._all = _square(room) if size <= _MOST_HELD else None
        # Rows of an index move, those of this table do not: where each row's cosines stand, and what is free.
        self._slots = np.arange(room)
        self._free: list[int] = []
        for first in range(0, size, _ROWS_AT_ONCE):
            places = np.arange(first, min(size, first + _ROWS_AT_ONCE))
            found = index.products(index.vectors(index.ids[places].tolist()))
            if self._all is not None:
                self._all[places, :size] = found
            self._sums[places] = (
                found.sum(axis=1, dtype=np.float64) - found[np.arange(len(places)), places]
            )
            self._note(places, found)

    def nearest(self) -> Vectors:
        """The highest cosine of each row to another, shape (n,); -1 where there is no other."""
        return self._cosines[: self._size]

    def mean(self) -> npt.NDArray[np.float64]:
        """The mean cosine of each row to the others, shape (n,); 0 where there is no other."""
        if self._all is None:
            total = self._index.rows().sum(axis=0)
            return (self._index.cosines(total).astype(float) - 1.0) / max(1, self._size - 1)
        mean: npt.NDArray[np.float64] = self._sums[: self._size] / max(1, self._size - 1)
        return mean

    def follow(self, entry_id: int) -> None:
        """A vector is new, changed or gone: the index has it already."""
        index = self._index
        if entry_id not in index:
            self._remove(entry_id)
            return
        place = index.place(entry_id)
        found = index.cosines(index.vector(entry_id))
        own = float(found[place])
        changed = place < self._size
        stale = (self._ids[: self._size] == entry_id).nonzero()[0] if changed else _NONE
        if not changed:
            self._size += 1
            self._make_room()
        if self._all is not None:
            if changed:
                self._sums[: self._size] -= self._held(place)
            else:
                self._slots[place] = self._free.pop() if self._free else place
            slot, slots = self._slots[place], self._slots[: self._size]
            self._all[slot, slots] = self._all[slots, slot] = found
            self._sums[: self._size] += found
            self._sums[place] = float(found.sum(dtype=np.float64)) - own
        found[place] = -1
        nearer = (found >= self._cosines[: self._size]).nonzero()[0]
        self._cosines[nearer], self._ids[nearer] = found[nearer], entry_id
        self._search(stale)
        self._note_one(place, found)

    def _remove(self, entry_id: int) -> None:
        """The index has filled the row of a vector that is gone with its last one."""
        place = self._index.hole
        if self._all is not None:
            self._sums[: self._size] -= self._held(place)
            self._free.append(int(self._slots[place]))
        self._size -= 1
        for values in (self._cosines, self._ids, self._sums, self._slots):
            values[place] = values[self._size]
        self._search((self._ids[: self._size] == entry_id).nonzero()[0])

    def _held(self, place: int) -> Vectors:
        """The cosines of a row to all, shape (n,)."""
        assert self._all is not None
        held: Vectors = self._all[self._slots[place]].take(self._slots[: self._size])
        return held

    def _make_room(self) -> None:
        if self._size > len(self._ids):
            twice = 2 * len(self._ids)
            for name, fill in (("_cosines", -1), ("_ids", 0), ("_sums", 0), ("_slots", 0)):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.full_like(old, fill)]))
            if self._all is not None and self._size <= _MOST_HELD:
                held, size = _square(twice), len(self._all)
                held[:size, :size] = self._all[:, :size]
                self._all = held
        if self._size > _MOST_HELD:
            self._all = None

    def _search(self, places: npt.NDArray[np.int64]) -> None:
        """Look the nearest of some rows up among all."""
        if self._all is not None:
            for place in places.tolist():  # mostly none to two
                self._note_one(place, self._held(place))
        elif len(places):
            self._note(
                places, self._index.products(self._index.vectors(self._index.ids[places].tolist()))
            )

    def _note_one(self, place: int, found: Vectors) -> None:
        """As `_note`, of one row and its cosines, shape (n,)."""
        found[place] = -1
        best = len(found) - 1 - int(found[::-1].argmax())
        self._cosines[place] = found[best]
        self._ids[place] = self._index.ids[best] if len(found) > 1 else 0

    def _note(self, places: npt.NDArray[np.int64], found: Vectors) -> None:
        """The nearest of some rows, from their cosines to all, shape (len(places), n), which are used up."""
        rows = np.arange(len(places))
        found[rows, places] = -1
        best = found.shape[1] - 1 - found[:, ::-1].argmax(axis=1)
        self._cosines[places] = found[rows, best]
        self._ids[places] = self._index.ids[best] if found.shape[1] > 1 else 0


def _square(size: int) -> Vectors:
    """Room for the cosines of `size` rows; a few columns more, for numbers a power of two apart are slow to reach."""
    return np.zeros((size, size + _FIRST_ROWS), dtype=np.float32)
