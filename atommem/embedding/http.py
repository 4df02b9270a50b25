"""Embeddings from an OpenAI-compatible server (vLLM, TEI, llama.cpp, OpenAI)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from atommem.embedding.counted import EmbeddingCounts, unit_rows
from atommem.embedding.embedder import TextKind, Vectors
from atommem.errors import ConfigError
from atommem.servers.client import ClientOptions, RefusedError, ServerClient


class HttpEmbedder:
    """Embeds with ``POST /v1/embeddings``. The constructor asks the server once, for the dimension.

    Queries and entries are sent as they are: OpenAI's protocol has no place for a query instruction.
    A text that the server refuses for its length or its contents is cut in half until it takes it; `counts` says how
    often. No text ends a run.

    Args:
        base_url: The server, with or without the closing ``/v1``.
        model: The model's name there.
        options: Of the `ServerClient`.

    Raises:
        OutageError: The server is out of reach and retries are used up.
        ConfigError: The server refused, or what it returned are no embeddings.
    """

    def __init__(self, base_url: str, model: str, **options: Unpack[ClientOptions]) -> None:
        self.model = model
        self.counts = EmbeddingCounts()
        options = ClientOptions(timeout=60.0, max_in_flight=16) | options
        self._client = ServerClient(base_url, service="embedder", **options)
        self.dim = 0
        # In a thread with an event loop of its own: the constructor may run inside one.
        with ThreadPoolExecutor(max_workers=1) as thread:
            self.dim = thread.submit(asyncio.run, self._ask_dim()).result()
        self.id = f"http/{model}/{self.dim}"

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """Embed `texts`: shape (len(texts), dim), float32, every row of norm 1; `kind` makes no difference.

        Raises:
            OutageError: The server is out of reach and retries are used up.
            ConfigError: The server refused, or what it returned are no embeddings of these texts.
        """
        if not texts:
            return np.empty((0, self.dim), dtype=np.float32)
        return await self._embed(list(texts))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _ask_dim(self) -> int:
        try:
            vectors = await self._post(["dimension"])
        except RefusedError as error:
            raise self._refused(error) from error
        finally:
            await self._client.close()
        if unit_rows(vectors)[1]:
            raise ConfigError(
                f"{self._client.base_url} returned a vector that is zero or not finite: check its model."
            )
        return int(vectors.shape[1])

    async def _embed(self, texts: list[str]) -> Vectors:
        try:
            found = await self._post(texts)
        except RefusedError as error:
            if not error.of_input:
                raise self._refused(error) from error
            if len(texts) == 1:
                return await self._embed_beginning(texts[0], error)
            # One text is refused with all that were sent beside it: find it.
            half = len(texts) // 2
            return np.concatenate(
                await asyncio.gather(self._embed(texts[:half]), self._embed(texts[half:]))
            )
        vectors, lost = unit_rows(found)
        self.counts.add(len(texts), lost)
        return vectors

    async def _embed_beginning(self, text: str, error: RefusedError) -> Vectors:
        """Of a text that was refused: as much as the server takes, at least half of its window; else a makeshift."""
        attempts: list[tuple[str, dict[str, Any]]] = (
            [(text, {"truncate_prompt_tokens": -1})] if error.too_long else []
        )
        attempts += [(text[: len(text) >> cut], {}) for cut in range(1, len(text).bit_length())]
        for shorter, settings in attempts:
            try:
                vectors, lost = unit_rows(await self._post([shorter], settings))
            except RefusedError as again:
                if not again.of_input:
                    raise self._refused(again) from again
                continue
            self.counts.add_cut(text)
            self.counts.add(1, lost)
            return vectors
        self.counts.add(1, 1, str(error))
        return np.eye(1, self.dim, dtype=np.float32)

    async def _post(
        self, texts: list[str], settings: dict[str, Any] | None = None
    ) -> npt.NDArray[np.float32]:
        """Vectors as the server returns them. Raises RefusedError, and what `embed` does."""
        body = {"model": self.model, "input": texts, "encoding_format": "float"}
        reply = await self._client.post("/v1/embeddings", body | (settings or {}))
        try:
            vectors = _vectors(reply, len(texts))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{self._client.base_url}/v1/embeddings returned no embeddings of {len(texts)} texts "
                f"({type(error).__name__}: {error}): is it an embedding server?"
            ) from error
        if self.dim and vectors.shape[1] != self.dim:
            raise ConfigError(
                f"{self._client.base_url} returned vectors of length {vectors.shape[1]}, before of {self.dim}: "
                "is it serving one model only?"
            )
        return vectors

    def _refused(self, error: RefusedError) -> ConfigError:
        return ConfigError(
            f"The embedding server {self._client.base_url} refused to embed with model {self.model!r} ({error}): check "
            "embedder_url, embedder_model and the key (ATOMMEM_EMBEDDER_API_KEY)."
        )


def _vectors(reply: Any, count: int) -> npt.NDArray[np.float32]:
    """The vectors of a reply in the order of the request. Raises ValueError and the like."""
    items = sorted(reply["data"], key=lambda item: item["index"])
    if [item["index"] for item in items] != list(range(count)):
        raise ValueError(f"the indices are {[item['index'] for item in items][:8]}...")
    vectors = np.array([item["embedding"] for item in items], dtype=np.float32)
    if vectors.ndim != 2 or not vectors.shape[1]:
        raise ValueError("a vector is empty")
    return vectors
