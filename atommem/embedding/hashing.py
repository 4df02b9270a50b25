"""Embeddings without a model: texts that share words are near each other."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from atommem.embedding.counted import unit_rows
from atommem.embedding.embedder import TextKind, Vectors

PROBES = 8
"""Signed places that one word gets. Several places instead of one turn a collision of two words from a
full false match into an eighth of one."""

_WORD = re.compile(r"\w+")


class ModelFree:
    """An embedder without a model: the vector of a text follows from it alone; a zero one is the first unit vector.

    Args:
        dim: Length of the vectors.
    """

    id: str

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def vector(self, text: str) -> npt.NDArray[np.float64]:
        """The direction of a text, shape (dim,)."""
        raise NotImplementedError

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """Embed `texts`: shape (len(texts), dim), float32, every row of norm 1; `kind` makes no difference."""
        vectors, _ = unit_rows(
            np.array([self.vector(text) for text in texts]).reshape(len(texts), self.dim)
        )
        return vectors

    async def close(self) -> None:
        """Nothing to free."""


class HashingEmbedder(ModelFree):
    """Feature hashing of words (Weinberger et al. 2009), the same in every process and on every platform.

    Every word, with its case folded, adds +1 or -1 to `PROBES` places of the vector, which is then
    normalised. The inner product of two texts is, up to collisions, the cosine of their word counts;
    the collisions of a text of m words with one of n words have a standard deviation of about
    sqrt(m n / dim) shared words. A text without words (or with words that cancel each other out) gets the first unit
    vector.
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.id = f"hashing/{PROBES}/{dim}"

    def vector(self, text: str) -> npt.NDArray[np.float64]:
        """Its words, hashed."""
        words = _WORD.findall(text.casefold())
        if not words:
            return np.zeros(self.dim)
        places, signs = map(np.concatenate, zip(*map(_places, words), strict=True))
        return np.bincount(places % self.dim, weights=signs, minlength=self.dim).astype(np.float64)


@lru_cache(maxsize=65_536)
def _places(word: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Where a word goes (to be taken modulo dim), and with which signs."""
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=4 * PROBES).digest()
    numbers = np.frombuffer(digest, dtype="<u4").astype(np.int64)
    return numbers >> 1, np.where(numbers & 1, -1.0, 1.0)
