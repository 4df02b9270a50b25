"""The embedder contract, embedders without a model, and batching of concurrent requests."""

import asyncio
import hashlib
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from atommem.micro_batching import RequestBatcher, Waiting
from atommem.words import words

TextKind = Literal["query", "entry"]
Vectors = npt.NDArray[np.float32]
PROBES = 8
"""Signed places per word. With several, a collision of two words is an eighth of a match."""
_CACHED_VECTORS = 16_384


class Embedder(Protocol):
    """Map texts to unit vectors."""

    id: str  # kind, model and dim: vectors of two ids are never compared
    dim: int  # the length of the vectors

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """Embed `texts`: shape (len(texts), dim), float32, every row of norm 1."""

    async def close(self) -> None:
        """Free threads and connections."""
        return


def unit_rows(vectors: npt.NDArray[np.floating]) -> tuple[Vectors, int]:
    """Normalise rows to float32, and count those without a direction.

    The first unit vector replaces them, so that no text ends a run.
    """
    norms = np.linalg.norm(vectors, axis=-1)
    lost = ~(np.isfinite(norms) & (norms > 0))
    vectors = np.where(lost[:, None], np.eye(1, vectors.shape[-1], dtype=np.float32), vectors)
    norms = np.where(lost, np.float32(1), norms)
    return np.asarray(vectors / norms[:, None], dtype=np.float32), int(lost.sum())


class HashingEmbedder(Embedder):
    """Hash words to features (Weinberger et al. 2009), identically in every process and platform.

    Every word (`atommem.words.words`) adds +1 or -1 to `PROBES` places of the vector. The inner
    product of two texts is, up to collisions, the cosine of their word counts; collisions of texts
    with m and n words have a standard deviation of about sqrt(m n / dim) shared words.
    """

    kind = f"hashing/{PROBES}"

    def __init__(self, dim: int) -> None:
        self.id, self.dim = f"{self.kind}/{dim}", dim

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """Embed `texts`; entries also by their single Chinese characters."""
        found = [self._vector(text, kind == "entry") for text in texts]
        return unit_rows(np.array(found).reshape(len(texts), self.dim))[0]

    def _vector(self, text: str, is_entry: bool) -> npt.NDArray[np.float64]:
        found = words(text, characters=is_entry)
        if not found:
            return np.zeros(self.dim)
        places, signs = map(np.concatenate, zip(*map(_places, found), strict=True))
        return np.bincount(places % self.dim, weights=signs, minlength=self.dim).astype(np.float64)


class RandomEmbedder(HashingEmbedder):
    """Draw a direction seeded by the text: the control of the paper's retrieval ablation."""

    kind = "random/sphere"

    def _vector(self, text: str, is_entry: bool) -> npt.NDArray[np.float64]:
        seed = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        return np.random.default_rng(int.from_bytes(seed, "little")).standard_normal(self.dim)


@lru_cache(maxsize=65_536)
def _places(word: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return the places of a word (before modulo dim) and their signs."""
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=4 * PROBES).digest()
    numbers = np.frombuffer(digest, dtype="<u4").astype(np.int64)
    return numbers >> 1, np.where(numbers & 1, -1.0, 1.0)


class MicroBatcher:
    """Batch and cache calls of an embedder.

    Texts requested at the same time go to the embedder together: one call per kind and per
    `batch_size` texts. Its ``embed`` may be called concurrently.
    """

    batch_size = 1024

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self.id, self.dim = embedder.id, embedder.dim
        self._cache: dict[tuple[TextKind, str], Vectors] = {}
        kinds: tuple[TextKind, ...] = ("query", "entry")
        self._batchers = {kind: RequestBatcher(partial(self._embed, kind)) for kind in kinds}

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        if not texts:
            return np.empty((0, self.dim), dtype=np.float32)
        if all((kind, text) in self._cache for text in texts):
            return np.stack([self._cache[kind, text] for text in texts])
        return await self._batchers[kind].submit(tuple(texts))

    async def close(self) -> None:
        await self.embedder.close()

    async def _embed(self, kind: TextKind, items: list[Waiting[tuple[str, ...], Vectors]]) -> None:
        """Embed the texts that are not cached; an error reaches all requests."""
        texts = dict.fromkeys(text for item in items for text in item.request)
        found = {text: self._cache[kind, text] for text in texts if (kind, text) in self._cache}
        new, size = [text for text in texts if text not in found], self.batch_size
        calls = (self.embedder.embed(new[at : at + size], kind) for at in range(0, len(new), size))
        # Copies: a view would keep the whole call's array alive in the cache.
        rows = (row.copy() for part in await asyncio.gather(*calls) for row in part)
        found |= zip(new, rows, strict=True)
        self._cache |= {(kind, text): row for text, row in found.items()}
        while len(self._cache) > _CACHED_VECTORS:
            del self._cache[next(iter(self._cache))]
        for item in items:
            item.resolve(np.stack([found[text] for text in item.request]))
