"""Embedders with a model: sentence-transformers in this process, or behind a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from atommem.embedding.embedder import EmbeddingCounts, TextKind, Vectors, unit_rows
from atommem.errors import ConfigError
from atommem.plugins import hub_name, not_loaded, only_here
from atommem.servers.client import ClientOptions, RefusedError, ServerClient
from atommem.text_safety import clean


class SentenceTransformerEmbedder:
    """Embed in a worker thread, on the first GPU if there is one.

    Queries get the model's query prompt and entries its document prompt, if it defines them. Texts
    beyond the model's longest input are cut and counted.

    Args:
        model: A hub name (NAME or NAME@REVISION) or a folder.
    """

    def __init__(self, model: str | Path) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = "float32" if device == "cpu" else "auto"
        name, revision = hub_name(str(model))
        try:
            self._model: Any = SentenceTransformer(
                name,
                device=device,
                revision=revision,
                model_kwargs={"dtype": dtype},
                local_files_only=only_here(name),
            )
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"embedder_model={str(model)!r}: not a sentence-transformers model: "
                f"{not_loaded(name, error)} It may be a folder; --embedder hashing needs no model."
            ) from error
        # A folder's name, not its path, which differs between machines.
        self.model = Path(model).name if Path(model).is_dir() else str(model)
        self.dim = int(self._model.get_embedding_dimension())
        self.id = f"sentence_transformer/{self.model}/{self.dim}"
        self.counts = EmbeddingCounts()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="atommem-embedder")

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """Embed `texts`: shape (len(texts), dim), float32, every row of norm 1."""
        if not texts:
            return np.empty((0, self.dim), dtype=np.float32)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._encode, texts, kind)

    async def close(self) -> None:
        """End the worker thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _encode(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        texts = [clean(text) for text in texts]
        window = self._model.max_seq_length
        for text in texts:
            # A token has at least one byte, so short texts need no counting.
            if window is not None and len(text.encode()) > window and self._tokens(text) > window:
                self.counts.add_cut(text)
        encode = self._model.encode_query if kind == "query" else self._model.encode_document
        encoded = np.asarray(encode(texts, show_progress_bar=False), dtype=np.float32)
        # Normalised here, in float32: a model in half precision would be off by 1e-3.
        vectors, lost = unit_rows(encoded)
        self.counts.add(len(texts), lost)
        return vectors

    def _tokens(self, text: str) -> int:
        return len(self._model.tokenizer(text, truncation=False, verbose=False)["input_ids"])


class HttpEmbedder:
    """Embed with ``POST /v1/embeddings``; the constructor asks the server for the dimension.

    Queries and entries are sent alike: OpenAI's protocol lacks a query instruction. A text refused
    for its length or content is halved until the server takes it.

    Args:
        base_url: The server, with or without the closing ``/v1``.
        model: The model's name there.
        options: Options of `ServerClient`.
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
        """Embed `texts`; `kind` makes no difference. Raises as the constructor does."""
        if not texts:
            return np.empty((0, self.dim), dtype=np.float32)
        try:
            found = await self._post(texts)
        except RefusedError as error:
            if not error.of_input:
                raise self._config_error(error) from error
            if len(texts) == 1:
                return await self._embed_beginning(texts[0], error)
            # One refused text fails the whole request: bisect.
            half = len(texts) // 2
            parts = self.embed(texts[:half], kind), self.embed(texts[half:], kind)
            return np.concatenate(await asyncio.gather(*parts))
        vectors, lost = unit_rows(found)
        self.counts.add(len(texts), lost)
        return vectors

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

    async def _embed_beginning(self, text: str, error: RefusedError) -> Vectors:
        """Embed the longest beginning of a text that the server takes, halving it."""
        for cut in range(1, len(text).bit_length()):
            try:
                vectors, lost = unit_rows(await self._post([text[: len(text) >> cut]]))
            except RefusedError as again:
                if not again.of_input:
                    raise self._config_error(again) from again
                continue
            self.counts.add_cut(text)
            self.counts.add(1, lost)
            return vectors
        self.counts.add(1, 1, str(error))
        return np.eye(1, self.dim, dtype=np.float32)

    async def _post(self, texts: Sequence[str]) -> Vectors:
        body = {"model": self.model, "input": list(texts), "encoding_format": "float"}
        reply = await self._client.post("/v1/embeddings", body)
        try:
            items = {item["index"]: item["embedding"] for item in reply["data"]}
            vectors = np.array([items[index] for index in range(len(texts))], dtype=np.float32)
            if vectors.shape != (len(texts), self.dim or vectors.shape[-1]):
                raise ValueError(f"vectors of shape {vectors.shape} after {self.dim} numbers each")
        except (LookupError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{self._client.base_url}/v1/embeddings did not return embeddings of {len(texts)} "
                f"texts ({error}). Check that it is an embedding server of one model."
            ) from error
        return vectors

    def _config_error(self, error: RefusedError) -> ConfigError:
        return ConfigError(
            f"{self._client.base_url} refused to embed with model {self.model!r} ({error}). Check "
            "embedder_url, embedder_model and the key (ATOMMEM_EMBEDDER_API_KEY)."
        )
