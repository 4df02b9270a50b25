"""Share one embedder among episodes: concurrent requests become one call, with a cache."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from atommem.embedding.embedder import Embedder, EmbeddingCounts, TextKind, Vectors
from atommem.micro_batching import RequestBatcher, Waiting

_Key = tuple[TextKind, str]
_Request = tuple[tuple[str, ...], TextKind]


class MicroBatcher:
    """Batch and cache calls of an embedder.

    Texts requested at the same time go to the embedder together: one call per kind and per
    `max_batch` texts. An error of a call reaches every request with a text in it, and no other.

    Args:
        embedder: Its ``embed`` may be called concurrently.
        max_batch: Most texts in one call.
        cache_size: Vectors kept, least recently used dropped first; 0 keeps none.
    """

    def __init__(self, embedder: Embedder, max_batch: int = 1024, cache_size: int = 16_384) -> None:
        self.embedder = embedder
        self.id, self.dim = embedder.id, embedder.dim
        self.max_batch = max_batch
        self.cache_size = cache_size
        self.calls = 0
        self._cache: OrderedDict[_Key, Vectors] = OrderedDict()
        self._batcher: RequestBatcher[_Request, Vectors] = RequestBatcher(self._embed_all)

    @property
    def counts(self) -> EmbeddingCounts:
        """The embedder's counts of texts that were cut or lost."""
        found: EmbeddingCounts = getattr(self.embedder, "counts", EmbeddingCounts())
        return found

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """Embed `texts`: shape (len(texts), dim), float32, every row of norm 1.

        Raises:
            OutageError: The embedder is out of reach and its retries are exhausted.
        """
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
        vectors: dict[_Key, Vectors | BaseException] = {}
        new: dict[TextKind, dict[str, None]] = {}
        for texts, kind in (item.request for item in waiting):
            for text in texts:
                cached = self._cached((kind, text))
                if cached is None:
                    new.setdefault(kind, {})[text] = None
                else:
                    vectors[kind, text] = cached
        calls = [
            (kind, chunk)
            for kind, texts in new.items()
            for chunk in _chunks(list(texts), self.max_batch)
        ]
        self.calls += len(calls)
        results = await asyncio.gather(
            *(self.embedder.embed(chunk, kind) for kind, chunk in calls), return_exceptions=True
        )
        for (kind, chunk), result in zip(calls, results, strict=True):
            for row, text in enumerate(chunk):
                if isinstance(result, BaseException):
                    vectors[kind, text] = result
                else:
                    # A copy: a view would keep the whole call's array alive in the cache.
                    vectors[kind, text] = self._remember((kind, text), result[row].copy())
        for item in waiting:
            texts, kind = item.request
            rows = [vectors[kind, text] for text in texts]
            error = next((row for row in rows if isinstance(row, BaseException)), None)
            if error is not None:
                item.fail(error)
            else:
                item.resolve(np.stack([row for row in rows if not isinstance(row, BaseException)]))

    def _cached(self, key: _Key) -> Vectors | None:
        vector = self._cache.get(key)
        if vector is not None:
            self._cache.move_to_end(key)
        return vector

    def _remember(self, key: _Key, vector: Vectors) -> Vectors:
        if self.cache_size:
            self._cache[key] = vector
            if len(self._cache) > self.cache_size:
                self._cache.popitem(last=False)
        return vector


def _chunks(texts: list[str], size: int) -> list[list[str]]:
    return [texts[start : start + size] for start in range(0, len(texts), size)]
