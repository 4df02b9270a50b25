"""Embeddings from an OpenAI-compatible server (vLLM, TEI, llama.cpp, OpenAI)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from atommem.embedding.embedder import TextKind, Vectors
from atommem.errors import ConfigError
from atommem.servers.client import RefusedError, ServerClient

if TYPE_CHECKING:
    import httpx


class HttpEmbedder:
    """Embeds with ``POST /v1/embeddings``. The constructor asks the server once, for the dimension.

    Queries and entries are sent as they are: OpenAI's protocol has no place for a query instruction.
    Texts beyond the model's longest input are cut by servers that can (vLLM), and refused by others.

    Args:
        base_url: The server, with or without the closing ``/v1``.
        model: The model's name there.
        timeout: Seconds that one request may take.
        retries: How often a failed request is repeated, with exponential back-off.
        max_in_flight: Most requests at the same time.
        transport: An httpx transport, for tests.

    Raises:
        OutageError: The server is out of reach and retries are used up.
        ConfigError: The server refused, or what it returned are no embeddings.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        timeout: float = 60.0,
        retries: int = 5,
        max_in_flight: int = 16,
        backoff: float = 0.5,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.model = model
        self._client = ServerClient(
            base_url,
            timeout=timeout,
            retries=retries,
            max_in_flight=max_in_flight,
            backoff=backoff,
            transport=transport,
        )
        # In a thread with an event loop of its own: the constructor may run inside one.
        with ThreadPoolExecutor(max_workers=1) as thread:
            self._dim = thread.submit(asyncio.run, self._ask_dim()).result()

    @property
    def id(self) -> str:
        """Which vectors these are; see `Embedder`."""
        return f"http/{self.model}/{self._dim}"

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return self._dim

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """Embed `texts`: shape (len(texts), dim), float32, every row of norm 1; `kind` makes no difference.

        Raises:
            OutageError: The server is out of reach and retries are used up.
            ConfigError: The server refused, or what it returned are no embeddings of these texts.
        """
        if not texts:
            return np.empty((0, self._dim), dtype=np.float32)
        vectors = await self._post(texts)
        if vectors.shape[1] != self._dim:
            raise ConfigError(
                f"{self._client.base_url} returned vectors of length {vectors.shape[1]}, before of {self._dim}: "
                "is it serving one model only?"
            )
        return vectors

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _ask_dim(self) -> int:
        dim = int((await self._post(["dimension"])).shape[1])
        await self._client.close()
        return dim

    async def _post(self, texts: Sequence[str]) -> Vectors:
        body = {"model": self.model, "input": list(texts), "encoding_format": "float"}
        try:
            try:
                reply = await self._client.post("/v1/embeddings", body)
            except RefusedError as error:
                if not error.too_long:
                    raise
                # Models write long entries; vLLM cuts those when asked to, others do not know the field.
                reply = await self._client.post("/v1/embeddings", body | {"truncate_prompt_tokens": -1})
        except RefusedError as error:
            raise ConfigError(
                f"The embedding server {self._client.base_url} refused {len(texts)} texts for model {self.model!r} "
                f"({error}): check embedder_url and embedder_model."
            ) from error
        try:
            return _unit_vectors(reply, len(texts))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{self._client.base_url}/v1/embeddings returned no embeddings of {len(texts)} texts "
                f"({type(error).__name__}: {error}): is it an embedding server?"
            ) from error


def _unit_vectors(reply: Any, count: int) -> Vectors:
    """The vectors of a reply in the order of the request, normalised. Raises ValueError and the like."""
    items = sorted(reply["data"], key=lambda item: item["index"])
    if [item["index"] for item in items] != list(range(count)):
        raise ValueError(f"the indices are {[item['index'] for item in items][:8]}...")
    vectors = np.array([item["embedding"] for item in items], dtype=np.float32)
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    if vectors.ndim != 2 or not np.all(np.isfinite(norms)) or not np.all(norms > 0):
        raise ValueError("a vector is empty, zero or not finite")
    return np.asarray(vectors / norms, dtype=np.float32)
