"""The embedder contract, embedders without a model, and batching of concurrent requests."""

from __future__ import annotations

import asyncio
import hashlib
import re
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from atommem.errors import ConfigError
from atommem.micro_batching import RequestBatcher, Waiting

TextKind = Literal["query", "entry"]
Vectors = npt.NDArray[np.float32]
PROBES = 8
"""Signed places per word. With several, a collision of two words is an eighth of a match."""
_WORD = re.compile(r"\w+")
_MAX_LOST_IN_A_ROW = 64
_Key = tuple[TextKind, str]
_Request = tuple[tuple[str, ...], TextKind]


class Embedder(Protocol):
    """Map texts to unit vectors.

    Attributes:
        id: Kind, model and dim. Vectors of two ids are never compared.
        dim: Length of the vectors.
    """

    id: str
    dim: int

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """Embed `texts`: shape (len(texts), dim), float32, every row of norm 1."""
        ...

    async def close(self) -> None:
        """Free threads and connections."""
        ...


@dataclass
class EmbeddingCounts:
    """Count texts that were not embedded whole, and warn of the first of each kind.

    Attributes:
        cut: Texts beyond the model's window, of which the beginning was embedded.
        lost: Texts without a vector (refused at any length, or without a direction); the first unit
            vector replaces them, so that no text ends a run.
    """

    cut: int = 0
    lost: int = 0
    _lost_in_a_row: int = 0

    def add_cut(self, text: str) -> None:
        """Count a text whose beginning was embedded."""
        self.cut += 1
        if self.cut == 1:
            warnings.warn(
                f"a text of {len(text):,} characters exceeds the embedder's window and was cut",
                stacklevel=2,
            )

    def add(self, texts: int, lost: int, reason: str = "its vector is zero or not finite") -> None:
        """Count embedded texts, and those of them without a vector.

        Raises:
            ConfigError: None of the last 64 texts had one, so the model is at fault.
        """
        self.lost += lost
        if lost and self.lost == lost:
            warnings.warn(
                f"a text has no vector ({reason}); the first unit vector replaces it", stacklevel=2
            )
        self._lost_in_a_row = self._lost_in_a_row + lost if lost == texts else 0
        if self._lost_in_a_row >= _MAX_LOST_IN_A_ROW:
            raise ConfigError(
                f"None of the last {self._lost_in_a_row} texts could be embedded ({reason}). Check "
                "embedder_model, and the dtype of a model in half precision."
            )


def unit_rows(vectors: npt.NDArray[np.floating]) -> tuple[Vectors, int]:
    """Normalise rows to float32; return also how many lacked a direction and were replaced."""
    norms = np.linalg.norm(vectors, axis=-1)
    lost = ~(np.isfinite(norms) & (norms > 0))
    vectors = np.where(lost[:, None], np.eye(1, vectors.shape[-1], dtype=np.float32), vectors)
    norms = np.where(lost, np.float32(1), norms)
    return np.asarray(vectors / norms[:, None], dtype=np.float32), int(lost.sum())


class HashingEmbedder:
    """Hash words to features (Weinberger et al. 2009), identically in every process and platform.

    Every word, case-folded, adds +1 or -1 to `PROBES` places of the vector. The inner product of
    two texts is, up to collisions, the cosine of their word counts; collisions of texts with m and
    n words have a standard deviation of about sqrt(m n / dim) shared words. A text without words
    gets the first unit vector.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.id = f"hashing/{PROBES}/{dim}"

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """Embed `texts`; `kind` makes no difference."""
        vectors = np.array([self._vector(text) for text in texts]).reshape(len(texts), self.dim)
        return unit_rows(vectors)[0]

    async def close(self) -> None:
        """Do nothing."""

    def _vector(self, text: str) -> npt.NDArray[np.float64]:
        words = _WORD.findall(text.casefold())
        if not words:
            return np.zeros(self.dim)
        places, signs = map(np.concatenate, zip(*map(_places, words), strict=True))
        return np.bincount(places % self.dim, weights=signs, minlength=self.dim).astype(np.float64)


class RandomEmbedder(HashingEmbedder):
    """Draw a direction seeded by the text: the control of the paper's retrieval ablation."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.id = f"random/sphere/{dim}"

    def _vector(self, text: str) -> npt.NDArray[np.float64]:
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
    `max_batch` texts. An error of a call reaches every request with a text in it, and no other.

    Args:
        embedder: Its ``embed`` may be called concurrently.
        max_batch: Most texts in one call.
        cache_size: Vectors kept, least recently used dropped first.
    """

    def __init__(self, embedder: Embedder, max_batch: int = 1024, cache_size: int = 16_384) -> None:
        self.embedder = embedder
        self.id, self.dim = embedder.id, embedder.dim
        self.calls = 0
        self._max_batch = max_batch
        self._cache_size = cache_size
        self._cache: OrderedDict[_Key, Vectors] = OrderedDict()
        self._batcher: RequestBatcher[_Request, Vectors] = RequestBatcher(self._embed_all)

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """Embed `texts` as the embedder does."""
        if not texts:
            return np.empty((0, self.dim), dtype=np.float32)
        found = [self._cached((kind, text)) for text in texts]
        hits = [vector for vector in found if vector is not None]
        if len(hits) == len(texts):
            return np.stack(hits)
        return await self._batcher.submit((tuple(texts), kind))

    async def close(self) -> None:
        """Close the embedder."""
        await self.embedder.close()

    async def _embed_all(self, waiting: list[Waiting[_Request, Vectors]]) -> None:
        found: dict[_Key, Vectors | BaseException] = {}
        new: dict[TextKind, dict[str, None]] = {"query": {}, "entry": {}}
        for texts, kind in (item.request for item in waiting):
            for text in texts:
                cached = self._cached((kind, text))
                if cached is None:
                    new[kind][text] = None
                else:
                    found[kind, text] = cached
        calls = [
            (kind, list(texts)[start : start + self._max_batch])
            for kind, texts in new.items()
            for start in range(0, len(texts), self._max_batch)
        ]
        self.calls += len(calls)
        results = await asyncio.gather(
            *(self.embedder.embed(part, kind) for kind, part in calls), return_exceptions=True
        )
        for (kind, part), result in zip(calls, results, strict=True):
            for row, text in enumerate(part):
                if isinstance(result, BaseException):
                    found[kind, text] = result
                else:
                    # A copy: a view would keep the whole call's array alive in the cache.
                    found[kind, text] = self._remember((kind, text), result[row].copy())
        for item in waiting:
            texts, kind = item.request
            rows = [found[kind, text] for text in texts]
            vectors = [row for row in rows if not isinstance(row, BaseException)]
            if len(vectors) == len(rows):
                item.resolve(np.stack(vectors))
            else:
                item.fail(next(row for row in rows if isinstance(row, BaseException)))

    def _cached(self, key: _Key) -> Vectors | None:
        vector = self._cache.get(key)
        if vector is not None:
            self._cache.move_to_end(key)
        return vector

    def _remember(self, key: _Key, vector: Vectors) -> Vectors:
        self._cache[key] = vector
        if len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)
        return vector
