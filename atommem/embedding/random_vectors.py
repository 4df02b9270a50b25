"""The control of the paper's retrieval ablation: vectors that say nothing about their texts."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from atommem.embedding.hashing import ModelFree


class RandomEmbedder(ModelFree):
    """Every text gets a direction drawn uniformly from the sphere, seeded by the text: equal texts agree."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.id = f"random/sphere/{dim}"

    def vector(self, text: str) -> npt.NDArray[np.float64]:
        """As many normal numbers."""
        seed = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        return np.random.default_rng(int.from_bytes(seed, "little")).standard_normal(self.dim)
