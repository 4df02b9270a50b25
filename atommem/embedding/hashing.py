"""Embedders without a model: hashed words, and random directions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from atommem.embedding.embedder import TextKind, Vectors, unit_rows

PROBES = 8
"""Signed places per word. With several, a collision of two words is an eighth of a match."""
_WORD = re.compile(r"\w+")


class ModelFreeEmbedder:
    """Compute a text's vector from the text alone; a zero vector becomes the first unit vector."""

    id: str

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def vector(self, text: str) -> npt.NDArray[np.float64]:
        """Return the direction of a text, shape (dim,)."""
        raise NotImplementedError

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """Embed `texts`; `kind` makes no difference."""
        vectors = np.array([self.vector(text) for text in texts]).reshape(len(texts), self.dim)
        return unit_rows(vectors)[0]

    async def close(self) -> None:
        """Do nothing."""


class HashingEmbedder(ModelFreeEmbedder):
    """Hash words to features (Weinberger et al. 2009), identically in every process and platform.

    Every word, case-folded, adds +1 or -1 to `PROBES` places of the vector. The inner product of
    two texts is, up to collisions, the cosine of their word counts; collisions of texts with m and
    n words have a standard deviation of about sqrt(m n / dim) shared words.
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.id = f"hashing/{PROBES}/{dim}"

    def vector(self, text: str) -> npt.NDArray[np.float64]:
        """Hash the words of `text`."""
        words = _WORD.findall(text.casefold())
        if not words:
            return np.zeros(self.dim)
        places, signs = map(np.concatenate, zip(*map(_places, words), strict=True))
        return np.bincount(places % self.dim, weights=signs, minlength=self.dim).astype(np.float64)


class RandomEmbedder(ModelFreeEmbedder):
    """Draw a direction seeded by the text: the control of the paper's retrieval ablation."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.id = f"random/sphere/{dim}"

    def vector(self, text: str) -> npt.NDArray[np.float64]:
        """Draw `dim` normal numbers."""
        seed = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        return np.random.default_rng(int.from_bytes(seed, "little")).standard_normal(self.dim)


@lru_cache(maxsize=65_536)
def _places(word: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Places of a word (before modulo dim) and their signs."""
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=4 * PROBES).digest()
    numbers = np.frombuffer(digest, dtype="<u4").astype(np.int64)
    return numbers >> 1, np.where(numbers & 1, -1.0, 1.0)
