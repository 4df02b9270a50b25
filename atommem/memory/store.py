"""The vectors of a memory: a FAISS index by entry id, and a cache of vectors by text.

Both are caches of the operation log. faiss is imported with the first store.
"""

from __future__ import annotations

import copy
import hashlib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from atommem.embedding.embedder import Embedder, TextKind, Vectors
from atommem.errors import ConfigError
from atommem.files import replacing

Ids = npt.NDArray[np.int64]
Hits = list[tuple[int, float]]  # pairs of entry id and score, best first

TIE_TOLERANCE = 1e-6
"""Equal texts can differ in the last bits of their float32 scores, by batch and by row."""

_NORM_TOLERANCE = 1e-2
_MARGIN = 16


class VectorStore:
    """Unit vectors of length `dim` by entry id, with exact search by cosine."""

    def __init__(self, dim: int) -> None:
        import faiss

        self.dim = dim
        self._index: Any = faiss.IndexIDMap2(faiss.IndexFlatIP(dim))
        self._shared = False

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def add(self, ids: Sequence[int] | Ids, vectors: Vectors) -> None:
        """Add vectors, shape (n, dim), under `n` ids that the store does not hold."""
        self.update(dict(zip(ids, check_vectors(vectors, self.dim), strict=True)))

    def update(self, changes: Mapping[int, Vectors | None]) -> None:
        """Add or replace the vectors of some ids; None removes one."""
        if not changes:
            return
        new = {entry_id: row for entry_id, row in changes.items() if row is not None}
        rows = check_vectors(np.stack(list(new.values())), self.dim) if new else None
        if self._shared:
            import faiss

            self._index, self._shared = faiss.clone_index(self._index), False
        if np.isin(np.fromiter(changes, np.int64), self.ids).any():
            self._index.remove_ids(np.fromiter(changes, np.int64))
        if rows is not None:
            self._index.add_with_ids(rows, np.fromiter(new, np.int64))

    @property
    def ids(self) -> Ids:
        import faiss

        return faiss.vector_to_array(self._index.id_map)

    def rows(self, ids: Sequence[int] | Ids) -> Vectors:
        """Return a copy of the vectors of some ids, shape (n, dim)."""
        return self._index.reconstruct_batch(np.asarray(ids, np.int64))

    def search(self, vector: Vectors, k: int) -> Hits:
        """Return the `k` best entries for a unit vector (dim,), ordered as `best` orders them."""
        size = len(self)
        k, count = min(k, size), min(k + _MARGIN, size)
        if k < 1:
            return []
        while True:
            (scores,), (ids,) = self._index.search(vector[None], count)
            # The tie at rank k may go on below the cut-off.
            if count == size or scores[-1] < scores[k - 1] - TIE_TOLERANCE:
                return best(scores, ids, k)
            count = min(4 * count, size)

    def copy(self) -> Self:
        """Return an independent copy; the first of both to change makes an index of its own."""
        self._shared = True
        return copy.copy(self)


def best(scores: npt.NDArray[np.floating], ids: Ids, k: int) -> Hits:
    """Return the `k` best ids with their scores, rounded to six decimals.

    Scores within `TIE_TOLERANCE` of a group's best are ties, and the smaller id (the older entry)
    comes first; the next lower score starts a new group.
    """
    order = np.argsort(-scores, kind="stable")
    falling = -scores[order].astype(np.float64)
    chosen: list[int] = []
    while len(chosen) < min(k, len(order)):
        start = len(chosen)
        end = np.searchsorted(falling, falling[start] + TIE_TOLERANCE, side="right")
        group = order[start:end]
        chosen += group[np.argsort(ids[group])].tolist()
    # Adding zero turns -0.0 into 0.0.
    return [(int(ids[place]), round(float(scores[place]), 6) + 0.0) for place in chosen[:k]]


def check_vectors(vectors: Vectors, dim: int) -> Vectors:
    """Return `vectors` as float32 rows; raise ConfigError unless they are unit rows of `dim`."""
    rows = np.ascontiguousarray(vectors, dtype=np.float32)
    if rows.ndim != 2 or rows.shape[1] != dim:
        raise ConfigError(f"vectors have shape {rows.shape}: the embedder must return (n, {dim}).")
    norms = np.linalg.norm(rows, axis=1)
    wrong = norms[~(np.abs(norms - 1.0) <= _NORM_TOLERANCE)]
    if len(wrong):
        raise ConfigError(f"a vector has norm {wrong[0]:.4g}: the embedder must give unit vectors.")
    return rows


@dataclass(frozen=True, slots=True, eq=False)
class TextVectors:
    """Vectors (n, dim) by `digests_of` their texts (n,), which a restored memory need not embed."""

    embedder: str
    digests: npt.NDArray[np.uint64]
    rows: Vectors

    def save(self, path: Path) -> None:
        with replacing(path) as draft, draft.open("wb") as file:
            np.savez(file, embedder=np.array(self.embedder), digests=self.digests, rows=self.rows)

    @staticmethod
    def load(path: Path) -> TextVectors | None:
        """Read a file that `save` wrote; None if it is missing or damaged."""
        try:
            with np.load(path, allow_pickle=False) as file:
                return TextVectors(str(file["embedder"]), file["digests"], file["rows"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None


def digests_of(texts: Iterable[str], kind: TextKind) -> npt.NDArray[np.uint64]:
    """Return eight bytes of BLAKE2b for each text of one kind."""
    named = (f"{kind}{text}".encode("utf-8", "surrogatepass") for text in texts)
    found = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in named)
    return np.frombuffer(found, dtype="<u8").astype(np.uint64)


async def embed_texts(
    embedder: Embedder, texts: Sequence[str], kind: TextKind, cache: TextVectors | None = None
) -> Vectors:
    """Return the unit vectors of texts, shape (n, dim): from the cache, or embedded."""
    known: dict[int, Vectors] = {}
    if cache is not None and cache.embedder == embedder.id:
        known = dict(zip(cache.digests.tolist(), cache.rows, strict=True))
    found = [known.get(digest) for digest in digests_of(texts, kind).tolist()]
    if missing := [text for text, row in zip(texts, found, strict=True) if row is None]:
        new = iter(check_vectors(await embedder.embed(missing, kind), embedder.dim))
        found = [next(new) if row is None else row for row in found]
    return np.array(found, dtype=np.float32).reshape(len(texts), embedder.dim)
