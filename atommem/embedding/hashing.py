"""Embeddings without a model: texts that share words are near each other."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from atommem.embedding.embedder import TextKind, Vectors

PROBES = 8
"""Signed places that one word gets. Several places instead of one turn a collision of two words from a
full false match into an eighth of one."""

_WORD = re.compile(r"\w+")


class HashingEmbedder:
    """Feature hashing of words (Weinberger et al. 2009), the same in every process and on every platform.

    Every word, with its case folded, adds +1 or -1 to `PROBES` places of the vector, which is then
    normalised. The inner product of two texts is, up to collisions, the cosine of their word counts;
    the collisions of a text of m words with one of n words have a standard deviation of about
    sqrt(m n / dim) shared words. A text without words gets the first unit vector.

    Args:
        dim: Length of the vectors.
    """

    def __init__(self, dim: int) -> None:
        self._dim = dim

    @property
    def id(self) -> str:
        """Which vectors these are; see `Embedder`."""
        return f"hashing/{PROBES}/{self._dim}"

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return self._dim

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """Embed `texts`: shape (len(texts), dim), float32, every row of norm 1; `kind` makes no difference."""
        vectors = np.zeros((len(texts), self._dim), dtype=np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            words = _WORD.findall(text.casefold())
            if words:
                hashed = [_places(word) for word in words]
                places = np.concatenate([place for place, _ in hashed]) % self._dim
                signs = np.concatenate([sign for _, sign in hashed])
                vector[:] = np.bincount(places, weights=signs, minlength=self._dim)
            norm = np.linalg.norm(vector)
            if norm:
                vector /= norm
            else:  # no words, or words that cancel each other out
                vector[0] = 1
        return vectors

    async def close(self) -> None:
        """Nothing to free."""


@lru_cache(maxsize=65_536)
def _places(word: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Where a word goes (to be taken modulo dim), and with which signs."""
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=4 * PROBES).digest()
    numbers = np.frombuffer(digest, dtype="<u4").astype(np.int64)
    return numbers >> 1, np.where(numbers & 1, -1.0, 1.0)
