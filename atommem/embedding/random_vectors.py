"""The control of the paper's retrieval ablation: vectors that say nothing about their texts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from atommem.embedding.embedder import TextKind, Vectors


class RandomEmbedder:
    """Every text gets a direction drawn uniformly from the sphere, seeded by the text: equal texts agree.

    Args:
        dim: Length of the vectors.
    """

    def __init__(self, dim: int) -> None:
        self._dim = dim

    @property
    def id(self) -> str:
        """Which vectors these are; see `Embedder`."""
        return f"random/sphere/{self._dim}"

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return self._dim

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """Embed `texts`: shape (len(texts), dim), float32, every row of norm 1; `kind` makes no difference."""
        vectors = np.empty((len(texts), self._dim), dtype=np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            seed = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            drawn = np.random.default_rng(int.from_bytes(seed, "little")).standard_normal(self._dim)
            vector[:] = drawn / np.linalg.norm(drawn)
        return vectors

    async def close(self) -> None:
        """Nothing to free."""
