"""Embeddings from an OpenAI-compatible server (vLLM, TEI, llama.cpp, OpenAI)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from atommem.embedding.embedder import EmbeddingCounts, TextKind, Vectors, unit_rows
from atommem.errors import ConfigError
from atommem.servers.client import ClientOptions, RefusedError, ServerClient


class HttpEmbedder:
    """Embed with ``POST /v1/embeddings``; the constructor asks the server for the dimension.

    Queries and entries are sent alike: OpenAI's protocol lacks a query instruction. A text refused
    for its length or content is halved until the server takes it.

    Args:
        base_url: The server, with or without the closing ``/v1``.
        model: The model's name there.
        options: Options of `ServerClient`.

    Raises:
        OutageError: The server is out of reach and retries are exhausted.
        ConfigError: The server refused, or did not return embeddings.
    """

    def __init__(self, base_url: str, model: str, **options: Unpack[ClientOptions]) -> None:
        self.model = model
        self.counts = EmbeddingCounts()
        options = ClientOptions(timeout=60.0, max_in_flight=16) | options
        self._client = ServerClient(base_url, service="embedder", **options)
        self.dim = 0
        # In a thread with its own event loop: a loop may already run in this one.
        with ThreadPoolExecutor(max_workers=1) as thread:
            self.dim = thread.submit(asyncio.run, self._measure_dim()).result()
        self.id = f"http/{model}/{self.dim}"

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """Embed `texts`; `kind` makes no difference.

        Raises:
            OutageError: The server is out of reach and retries are exhausted.
            ConfigError: The server refused, or did not return embeddings of these texts.
        """
        if not texts:
            return np.empty((0, self.dim), dtype=np.float32)
        return await self._embed(list(texts))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _measure_dim(self) -> int:
        try:
            vectors = await self._post(["dimension"])
        except RefusedError as error:
            raise self._config_error(error) from error
        finally:
            await self._client.close()
        if unit_rows(vectors)[1]:
            raise ConfigError(
                f"{self._client.base_url} returned a vector that is zero or not finite. "
                "Check its model."
            )
        return int(vectors.shape[1])

    async def _embed(self, texts: list[str]) -> Vectors:
        try:
            found = await self._post(texts)
        except RefusedError as error:
            if not error.of_input:
                raise self._config_error(error) from error
            if len(texts) == 1:
                return await self._embed_beginning(texts[0], error)
            # One refused text fails the whole request: bisect.
            half = len(texts) // 2
            return np.concatenate(
                await asyncio.gather(self._embed(texts[:half]), self._embed(texts[half:]))
            )
        vectors, lost = unit_rows(found)
        self.counts.add(len(texts), lost)
        return vectors

    async def _embed_beginning(self, text: str, error: RefusedError) -> Vectors:
        attempts: list[tuple[str, dict[str, Any]]] = (
            [(text, {"truncate_prompt_tokens": -1})] if error.too_long else []
        )
        attempts += [(text[: len(text) >> cut], {}) for cut in range(1, len(text).bit_length())]
        for shorter, settings in attempts:
            try:
                vectors, lost = unit_rows(await self._post([shorter], settings))
            except RefusedError as again:
                if not again.of_input:
                    raise self._config_error(again) from again
                continue
            self.counts.add_cut(text)
            self.counts.add(1, lost)
            return vectors
        self.counts.add(1, 1, str(error))
        return np.eye(1, self.dim, dtype=np.float32)

    async def _post(
        self, texts: list[str], settings: dict[str, Any] | None = None
    ) -> npt.NDArray[np.float32]:
        body = {"model": self.model, "input": texts, "encoding_format": "float"}
        reply = await self._client.post("/v1/embeddings", body | (settings or {}))
        try:
            vectors = _vectors(reply, len(texts))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{self._client.base_url}/v1/embeddings did not return embeddings of {len(texts)} "
                "texts "
                f"({type(error).__name__}: {error}). Check that it is an embedding server."
            ) from error
        if self.dim and vectors.shape[1] != self.dim:
            raise ConfigError(
                f"{self._client.base_url} returned vectors of length {vectors.shape[1]} after "
                f"{self.dim}. "
                "Check that it serves one model."
            )
        return vectors

    def _config_error(self, error: RefusedError) -> ConfigError:
        return ConfigError(
            f"{self._client.base_url} refused to embed with model {self.model!r} ({error}). Check "
            "embedder_url, embedder_model and the key (ATOMMEM_EMBEDDER_API_KEY)."
        )


def _vectors(reply: Any, count: int) -> npt.NDArray[np.float32]:
    """The vectors in the order of the request."""
    items = sorted(reply["data"], key=lambda item: item["index"])
    if [item["index"] for item in items] != list(range(count)):
        raise ValueError(f"the indices are {[item['index'] for item in items][:8]}...")
    vectors = np.array([item["embedding"] for item in items], dtype=np.float32)
    if vectors.ndim != 2 or not vectors.shape[1]:
        raise ValueError("a vector is empty")
    return vectors
