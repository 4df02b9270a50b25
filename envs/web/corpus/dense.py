"""Vectors of passages in one file, searched exactly.

The product of the file, mapped into memory, with a query: as fast as FAISS's flat index, and it grows by appending.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from atommem.embedding.embedder import Embedder
from atommem.envs.web.corpus.lexical import Ranked
from atommem.envs.web.corpus.page_store import batched

_BATCH = 256


class DenseIndex:
    """Row i of the file is passage i + 1; what is gone, or was never a passage, is a row of zeros.

    Args:
        path: The file: float32, rows of the embedder's length.
        embedder: Of entries and queries.
    """

    def __init__(self, path: Path, embedder: Embedder) -> None:
        self._path, self.embedder = path, embedder
        path.touch()

    def last(self) -> int:
        """The number of the last passage with a vector."""
        return self._path.stat().st_size // (4 * self.embedder.dim)

    async def add(self, passages: Iterable[tuple[int, str]]) -> None:
        """Embed passages (number, text) in order, from the one after `last` on: a run that was cut short goes on."""
        with self._path.open("r+b") as file:
            for batch in batched(passages, _BATCH):
                vectors = await self.embedder.embed([text for _, text in batch], "entry")
                file.seek(self.last() * 4 * self.embedder.dim)
                rows = np.zeros((batch[-1][0] - self.last(), self.embedder.dim), dtype=np.float32)
                rows[[number - 1 - self.last() for number, _ in batch]] = vectors
                file.write(rows.tobytes())
                file.flush()

    def search(self, vector: npt.NDArray[np.float32], count: int) -> Ranked:
        """The passages with the greatest inner product."""
        rows = self.last()
        if not rows:
            return []
        vectors = np.memmap(self._path, dtype=np.float32, mode="r", shape=(rows, self.embedder.dim))
        scores = vectors @ vector
        best = np.argpartition(-scores, count - 1)[:count] if count < rows else np.arange(rows)
        best = best[np.lexsort((best, -scores[best]))]
        return [(int(row) + 1, float(scores[row])) for row in best]
