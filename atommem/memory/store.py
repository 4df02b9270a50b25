"""The store: one episode's entries, searched by the inner product of unit vectors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from atommem.embedding.embedder import Vectors
from atommem.episode import Entry
from atommem.errors import ConfigError
from atommem.memory.retention import Reject, RetentionRule

TIE_TOLERANCE = 1e-6
"""Scores closer than this are a tie. Equal texts can differ in the last bits of their float32
scores, by the batch that they were embedded in and by the row that they stand in."""

_NORM_TOLERANCE = 1e-2


class Created(NamedTuple):
    """What a create did: `entry` is None when the new one was discarded, `evicted` made room for it."""

    entry: Entry | None
    evicted: Entry | None


class Store:
    """The entries of one episode. It starts empty; nothing else reaches it.

    Search is exact (FAISS ``IndexFlatIP``): on unit vectors the inner product is the cosine.

    Args:
        dim: Length of the vectors.
        capacity: Most entries at a time; None is unlimited.
        retention: What a create beyond the capacity does.

    Raises:
        ConfigError: `dim` or `capacity` is less than 1; in methods, a vector is not one of `dim`
            numbers with norm 1.
    """

    def __init__(self, dim: int, capacity: int | None = None, retention: RetentionRule | None = None) -> None:
        import faiss  # takes a quarter of a second; `import atommem` should not

        if dim < 1:
            raise ConfigError(f"dim is {dim}: a store needs vectors of at least 1 number.")
        if capacity is not None and capacity < 1:
            raise ConfigError(f"capacity is {capacity}: give at least 1, or None for no limit.")
        self.dim = dim
        self.capacity = capacity
        self._retention = Reject() if retention is None else retention
        self._index = faiss.IndexIDMap(faiss.IndexFlatIP(dim))
        self._entries: dict[int, Entry] = {}  # in order of their ids: ids grow, updates keep them
        self._next_id = 1

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry_id: object) -> bool:
        return entry_id in self._entries

    def get(self, entry_id: int) -> Entry | None:
        """The entry with this id, or None."""
        return self._entries.get(entry_id)

    def entries(self) -> list[Entry]:
        """All entries, oldest first."""
        return list(self._entries.values())

    def create(self, text: str, vector: Vectors, step: int) -> Created:
        """Add an entry, under an id that no entry of this store has had.

        Args:
            text: What to remember.
            vector: Its embedding, shape (dim,).
            step: The episode's step, for the retention rule.
        """
        row = self._row(vector)
        evicted: Entry | None = None
        if self.capacity is not None and len(self._entries) >= self.capacity:
            evicted_id = self._retention.evict(self.entries())
            if evicted_id is None:
                return Created(None, None)
            evicted = self.delete(evicted_id)
        entry = Entry(self._next_id, text, created=step, updated=step, used=step)
        self._next_id += 1
        self._entries[entry.id] = entry
        self._add_row(row, entry.id)
        return Created(entry, evicted)

    def update(self, entry_id: int, text: str, vector: Vectors, step: int) -> str:
        """Replace an entry's text and vector; its id and age stay.

        Returns:
            The text before.

        Raises:
            KeyError: There is no such entry.
        """
        entry = self._entries[entry_id]
        row = self._row(vector)
        self._remove_row(entry_id)
        self._add_row(row, entry_id)
        before, entry.text, entry.updated = entry.text, text, step
        return before

    def delete(self, entry_id: int) -> Entry:
        """Remove an entry and free its place. Its id is not used again.

        Raises:
            KeyError: There is no such entry.
        """
        entry = self._entries.pop(entry_id)
        self._remove_row(entry_id)
        return entry

    def mark_used(self, entry_ids: Iterable[int], step: int) -> None:
        """Note that these entries were shown to the policy at `step` (the rule ``lru`` reads it).

        Raises:
            KeyError: There is no such entry.
        """
        for entry_id in entry_ids:
            self._entries[entry_id].used = step

    def search(self, vector: Vectors, k: int) -> list[tuple[Entry, float]]:
        """The `k` entries most similar to a query, best first; fewer when the store holds fewer.

        A tie (`TIE_TOLERANCE`, from each score to the next) goes to the older entry, the smaller id.

        Args:
            vector: The query's embedding, shape (dim,).
            k: How many entries to return, at least 1.

        Returns:
            Entries with their scores (cosine, -1 to 1).
        """
        row = self._row(vector)
        size = len(self._entries)
        if k < 1 or not size:
            return []
        # A tie that reaches beyond rank k may hold older entries there: look further until it ends.
        depth = k
        while True:
            depth = min(size, depth * 2)
            scores, ids = self._index.search(row, depth)
            starts = np.flatnonzero(scores[0, :-1] - scores[0, 1:] > TIE_TOLERANCE) + 1
            if depth == size or (len(starts) and starts[-1] >= k):
                break
        runs = np.searchsorted(starts, np.arange(depth), side="right")
        order = np.lexsort((ids[0], runs))[:k]
        return [(self._entries[int(ids[0, i])], float(scores[0, i])) for i in order]

    def _add_row(self, row: Vectors, entry_id: int) -> None:
        self._index.add_with_ids(row, np.array([entry_id], dtype=np.int64))

    def _remove_row(self, entry_id: int) -> None:
        import faiss

        self._index.remove_ids(faiss.IDSelectorRange(entry_id, entry_id + 1))

    def _row(self, vector: Vectors) -> Vectors:
        """`vector` as a matrix of one row, checked: FAISS would take a NaN and then lose the entry."""
        row = np.ascontiguousarray(vector, dtype=np.float32).reshape(1, -1)
        if row.shape[1] != self.dim:
            raise ConfigError(f"vector has shape {np.shape(vector)}, the store's have {self.dim}: use one embedder.")
        norm = float(np.linalg.norm(row))
        if not abs(norm - 1.0) <= _NORM_TOLERANCE:
            raise ConfigError(f"vector has norm {norm:.4g} instead of 1: the embedder has to return unit vectors.")
        return row
