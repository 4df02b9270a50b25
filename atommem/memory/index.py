"""The vectors of a store, searched exactly: a cache of what the operation log says, in blocks of float32 rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from math import sqrt

import numpy as np
import numpy.typing as npt

from atommem.embedding.embedder import Vectors
from atommem.errors import ConfigError
from atommem.memory.shared_map import SharedMap
from atommem.memory.threads import THREADS, offload, share

Ids = npt.NDArray[np.int64]
Hits = list[tuple[int, float]]

TIE_TOLERANCE = 1e-6
"""Scores this close to the best of their group are a tie. Equal texts can differ in the last bits of their float32
scores, by the batch that they were embedded in and by the row that they stand in."""

_NORM_TOLERANCE = 1e-2
_BLOCK_NUMBERS = 2**18
"""Numbers in a block (1 MiB): what a fork copies to write, and what one product is made of. OpenBLAS begins threads of
its own for larger ones, which get in each other's way when several searches run."""
_BLOCKS_ON_LOOP, _ENTRIES_ON_LOOP = 4, 4096
_SLAB_BLOCKS = 16
"""Blocks beyond the first are allocated by so many: memory in large pages is read a fifth faster."""
_FIRST_ROWS = 16
_FEW_VECTORS = 8


class VectorIndex:
    """Unit vectors by id. Search is exact: the inner products of all rows, in float32 (on unit vectors the cosine).

    A removed row is filled with the last one, so that removing costs one row. Forks share blocks until one writes.

    Args:
        dim: Length of the vectors.

    Raises:
        ConfigError: `dim` is less than 1; in methods, a vector is not one of `dim` numbers with norm 1.
    """

    def __init__(self, dim: int) -> None:
        if dim < 1:
            raise ConfigError(f"dim is {dim}: a store needs vectors of at least 1 number.")
        self.dim = dim
        self._block_rows = max(_FIRST_ROWS, 2 ** ((_BLOCK_NUMBERS // dim).bit_length() - 1))
        self._blocks: list[Vectors] = []
        self._shared: set[int] = set()
        self._ids: Ids = np.empty(0, dtype=np.int64)
        self._rows: SharedMap[int] = SharedMap()
        self.hole = 0
        """The row of the vector that was removed last: what was the last row stands there now."""

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, entry_id: object) -> bool:
        return entry_id in self._rows

    def put(self, entry_id: int, vector: Vectors) -> None:
        """Add a vector, or replace the one of this id."""
        row = self.check(vector)
        place = self._rows.get(entry_id)
        if place is None:
            place = len(self._rows)
            self._make_room(place + 1)
            self._rows[entry_id] = place
            self._ids[place] = entry_id
        self._write(place, row)

    def add(self, ids: Sequence[int] | Ids, vectors: Vectors) -> None:
        """Add many at once, under ids that are not there yet.

        Args:
            ids: Length n, each once.
            vectors: Shape (n, dim).
        """
        rows = self._check_all(vectors, len(ids))
        first, size = len(self._rows), len(self._rows) + len(rows)
        new = {int(entry_id): first + place for place, entry_id in enumerate(ids)}
        if len(new) < len(rows) or any(entry_id in self._rows for entry_id in new):
            raise ConfigError(
                f"{len(rows)} vectors came with ids that repeat or are there already: give each id once."
            )
        self._make_room(size)
        self._rows.update(new)
        self._ids[first:size] = ids
        while first < size:
            number, place = divmod(first, self._block_rows)
            end = min(size, (number + 1) * self._block_rows)
            self._block(number)[place : place + end - first] = rows[
                len(rows) - (size - first) : len(rows) - size + end
            ]
            first = end

    def remove(self, entry_id: int) -> None:
        """Take one out.

        Raises:
            KeyError: There is no such id.
        """
        place = self.hole = self._rows.pop(entry_id)
        last = len(self._rows)
        if place != last:
            moved = int(self._ids[last])
            self._write(place, self._blocks[last // self._block_rows][last % self._block_rows])
            self._ids[place] = moved
            self._rows[moved] = place
        # One slab may stay empty: deleting and creating in turn should not allocate in turn.
        while len(self._blocks) > _SLAB_BLOCKS + -(-last // self._block_rows):
            self._blocks.pop()
            self._shared.discard(len(self._blocks))

    def vector(self, entry_id: int) -> Vectors:
        """A copy of the vector of an id, shape (dim,).

        Raises:
            KeyError: There is no such id.
        """
        number, inside = divmod(self._rows[entry_id], self._block_rows)
        return self._blocks[number][inside].copy()

    @property
    def ids(self) -> Ids:
        """The ids in the order of the rows, shape (n,): not to be changed. It is no order of age."""
        return self._ids[: len(self._rows)]

    def place(self, entry_id: int) -> int:
        """The row of an id. Raises KeyError where there is none."""
        return self._rows[entry_id]

    def rows(self) -> Vectors:
        """A copy of all vectors in the order of `ids`, shape (n, dim)."""
        size = len(self._rows)
        used = self._blocks[: -(-size // self._block_rows)]
        if not used:
            return np.empty((0, self.dim), dtype=np.float32)
        return np.concatenate(
            [block[: size - n * self._block_rows] for n, block in enumerate(used)]
        )

    def cosines(self, vector: Vectors) -> Vectors:
        """The inner product of a vector (dim,) with every row, in the order of `ids`: shape (n,), float32."""
        scores = np.empty(len(self._rows), dtype=np.float32)
        parts = THREADS if self.is_large else 1
        edges = [len(self._blocks) * part // parts for part in range(parts + 1)]
        share([partial(self._score, vector, scores, start, end) for start, end in pairwise(edges)])
        return scores

    def products(self, vectors: Vectors) -> Vectors:
        """As `cosines` for several vectors, shape (m, dim): shape (m, n)."""
        scores = np.empty((len(vectors), len(self._rows)), dtype=np.float32)
        if (
            len(vectors) <= _FEW_VECTORS
        ):  # a product of two matrices would first copy the blocks into its own order
            for vector, row in zip(vectors, scores, strict=True):
                self._score(vector, row, 0, len(self._blocks))
            return scores
        for number, block in enumerate(self._blocks):
            start = number * self._block_rows
            if start < scores.shape[1]:
                part = scores[:, start : start + self._block_rows]
                part[:] = vectors @ block[: part.shape[1]].T
        return scores

    def vectors(self, ids: Iterable[int]) -> Vectors:
        """A copy of the vectors of some ids, in their order: shape (n, dim).

        Raises:
            KeyError: There is no such id.
        """
        places = np.fromiter((self._rows[entry_id] for entry_id in ids), dtype=np.int64)
        found = np.empty((len(places), self.dim), dtype=np.float32)
        numbers, inside = np.divmod(places, self._block_rows)
        for number in np.unique(numbers):
            chosen = numbers == number
            found[chosen] = self._blocks[number][inside[chosen]]
        return found

    def fork(self) -> VectorIndex:
        """The same vectors, to be changed apart from these."""
        twin = VectorIndex(self.dim)
        twin._blocks, twin._ids, twin._rows = (
            list(self._blocks),
            self._ids.copy(),
            self._rows.copy(),
        )
        self._shared, twin._shared = set(range(len(self._blocks))), set(range(len(self._blocks)))
        return twin

    def search(self, vector: Vectors, k: int) -> Hits:
        """The `k` ids most similar to a query with their scores (cosine, -1 to 1), best first; fewer of fewer.

        Scores that lie within `TIE_TOLERANCE` of the best of their group tie: the smaller id, the older entry, comes
        first. The best score opens the first group, the best score outside of it the next one, so ties do not chain.

        Args:
            vector: The query's embedding, shape (dim,).
            k: How many to return.
        """
        return best(self.cosines(self.check(vector)), self.ids, k)

    async def find(self, vector: Vectors, k: int) -> Hits:
        """As `search`, in a thread where the store is large."""
        if self.is_large:
            return await offload(self.search, vector, k)
        return self.search(vector, k)

    @property
    def is_large(self) -> bool:
        """Whether a look at every row or entry is too much work for the event loop (about a millisecond)."""
        return len(self._rows) > min(_ENTRIES_ON_LOOP, _BLOCKS_ON_LOOP * self._block_rows)

    def check(self, vector: Vectors) -> Vectors:
        """`vector` as `dim` float32 numbers of norm 1, or an error."""
        row = np.ascontiguousarray(vector, dtype=np.float32).reshape(-1)
        if len(row) != self.dim or not abs(sqrt(float(row @ row)) - 1.0) <= _NORM_TOLERANCE:
            self._check_all(row[None], 1)
        return row

    def _check_all(self, vectors: Vectors, count: int) -> Vectors:
        rows = np.ascontiguousarray(vectors, dtype=np.float32)
        if rows.size != count * self.dim:
            raise ConfigError(
                f"{count} vector(s) came with shape {np.shape(vectors)}, the store's have {self.dim} numbers: "
                "use one embedder."
            )
        rows = rows.reshape(count, self.dim)
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        wrong = norms[~(np.abs(norms - 1.0) <= _NORM_TOLERANCE)]
        if len(wrong):
            raise ConfigError(
                f"vector has norm {wrong[0]:.4g} instead of 1: the embedder has to return unit vectors."
            )
        return rows

    def _score(self, query: Vectors, scores: Vectors, first: int, last: int) -> None:
        """Write the inner products with the rows of some blocks to their places in `scores`."""
        for number in range(first, last):
            start = number * self._block_rows
            end = min(len(scores), start + self._block_rows)
            if start < end:
                np.dot(self._blocks[number][: end - start], query, out=scores[start:end])

    def _write(self, place: int, row: Vectors) -> None:
        number, inside = divmod(place, self._block_rows)
        self._block(number)[inside] = row

    def _block(self, number: int) -> Vectors:
        """A block to write to: of its own, should a fork share it."""
        if number in self._shared:
            self._shared.discard(number)
            self._blocks[number] = self._blocks[number].copy()
        return self._blocks[number]

    def _make_room(self, size: int) -> None:
        if size > len(self._ids):
            ids = np.empty(max(_FIRST_ROWS, size, 2 * len(self._ids)), dtype=np.int64)
            ids[: len(self._rows)] = self._ids[: len(self._rows)]
            self._ids = ids
        # The first block grows, for most stores are small; the others are there whole, and take memory as they fill.
        if self._blocks and len(self._blocks[0]) < min(size, self._block_rows):
            small = self._blocks[0]
            self._blocks[0] = np.empty(
                (min(self._block_rows, max(size, 2 * len(small))), self.dim), dtype=np.float32
            )
            self._blocks[0][: len(small)] = small
            self._shared.discard(0)
        if not self._blocks:
            self._blocks.append(
                np.empty(
                    (min(self._block_rows, max(size, _FIRST_ROWS)), self.dim), dtype=np.float32
                )
            )
        while len(self._blocks) * self._block_rows < size:
            slab = np.empty((_SLAB_BLOCKS, self._block_rows, self.dim), dtype=np.float32)
            self._blocks += list(slab)


def best(scores: Vectors, ids: Ids, k: int) -> Hits:
    """The `k` best of `scores` under the rule of `VectorIndex.search`: ids and scores, rounded to the tolerance.

    Args:
        scores: Shape (n,).
        ids: Shape (n,), the id of each.
        k: How many; n where it is more.
    """
    k = min(k, len(scores))
    if k < 1:
        return []
    kth = np.float64(np.partition(scores, len(scores) - k)[len(scores) - k])
    # The group of rank k, whatever its best score is, reaches no lower than this.
    places = np.flatnonzero(
        ~(scores < kth - TIE_TOLERANCE)
    )  # a score that is no number is the last
    places = places[np.argsort(-scores[places], kind="stable")]
    falling = -scores[places].astype(np.float64)
    chosen: list[int] = []
    while len(chosen) < k:
        first = len(chosen)
        group = places[
            first : np.searchsorted(falling, falling[first] + TIE_TOLERANCE, side="right")
        ]
        chosen += group[np.argsort(ids[group])][: k - first].tolist()
    return [(int(ids[place]), round(float(scores[place]), 6)) for place in chosen]
