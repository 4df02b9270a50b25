"""Embedders with a model: sentence-transformers in this process, or behind a server."""

import asyncio
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from atommem.embedding.embedder import TextKind, Vectors, unit_rows
from atommem.errors import ConfigError
from atommem.plugins import hub_name, not_loaded, only_here
from atommem.process import wait_for
from atommem.servers.client import RefusedError, ServerClient
from atommem.text_safety import clean


class SentenceTransformerEmbedder:
    """Embed in a worker thread, on the first GPU if there is one.

    Queries get the model's query prompt and entries its document prompt, if it defines them. Texts
    beyond the model's longest input are cut.
    """

    def __init__(self, model: str | Path) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        device = "cuda" if torch.cuda.is_available() else "cpu"
        name, revision = hub_name(str(model))
        try:
            self._model: Any = SentenceTransformer(
                name,
                device=device,
                revision=revision,
                model_kwargs={"dtype": "float32" if device == "cpu" else "auto"},
                local_files_only=only_here(name),
            )
        except (OSError, ValueError) as error:
            reason = not_loaded(name, "a sentence-transformers model", error)
            raise ConfigError(
                f"embedder_model={model}: {reason} embedder=hashing needs none."
            ) from error
        # A folder's name, not its path, which differs between machines.
        self.model = Path(model).name if Path(model).is_dir() else str(model)
        self.dim = int(self._model.get_embedding_dimension())
        self.id = f"sentence_transformer/{self.model}/{self.dim}"
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="atommem-embedder")

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._encode, texts, kind)

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _encode(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        texts = [clean(text) for text in texts]
        window = self._model.max_seq_length
        # A token has at least one byte, so short texts need no counting.
        long = [text for text in texts if window is not None and len(text.encode()) > window]
        count = partial(self._model.tokenizer, truncation=False, verbose=False)
        if any(len(count(text)["input_ids"]) > window for text in long):
            warnings.warn(f"{self.model}: a text beyond {window} tokens was cut", stacklevel=2)
        encode = self._model.encode_query if kind == "query" else self._model.encode_document
        encoded = np.asarray(encode(texts, show_progress_bar=False), dtype=np.float32)
        # Normalised here, in float32: a model in half precision would be off by 1e-3.
        return _directions(encoded, self.model)


class HttpEmbedder:
    """Embed with ``POST /v1/embeddings``; the constructor asks the server for the dimension.

    Queries and entries are sent alike: OpenAI's protocol lacks a query instruction. A text refused
    for its length or content is halved until the server takes it. `options` are `ServerClient`'s.
    """

    def __init__(self, base_url: str, model: str, **options: Any) -> None:
        self.model = model
        options = {"timeout": 60.0, "max_in_flight": 16, **options}
        self._client = ServerClient(base_url, service="embedder", **options)
        self.dim = 0  # until it is measured
        self.dim = wait_for(self._measure_dim())
        self.id = f"http/{model}/{self.dim}"

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        vectors = await self._request(list(texts))
        if vectors.shape[1] != self.dim:
            raise ConfigError(
                f"{self._client.base_url} returned {vectors.shape[1]} numbers a text after "
                f"{self.dim}. Check that it serves one model."
            )
        return _directions(vectors, self.model)

    async def close(self) -> None:
        await self._client.close()

    async def _measure_dim(self) -> int:
        try:
            vectors = await self._request(["a"])
        finally:
            await self._client.close()
        if unit_rows(vectors)[1]:
            raise ConfigError(
                f"{self._client.base_url} returned a vector that is zero or not finite. "
                "Check its model."
            )
        return int(vectors.shape[1])

    async def _request(self, texts: list[str]) -> Vectors:
        """Return the server's vectors; one refused text fails a whole request, so bisect it."""
        body = {"model": self.model, "input": texts, "encoding_format": "float"}
        try:
            reply = await self._client.post("/v1/embeddings", body)
        except RefusedError as error:
            half = len(texts) // 2
            if error.of_input and half:
                parts = self._request(texts[:half]), self._request(texts[half:])
                return np.concatenate(await asyncio.gather(*parts))
            if error.of_input and len(texts[0]) > 1:
                warnings.warn(f"{self.model}: a refused text was cut ({error})", stacklevel=2)
                return await self._request([texts[0][: len(texts[0]) // 2]])
            if error.of_input and self.dim:  # nothing that a model writes ends a run
                warnings.warn(f"{self.model}: a refused text has no vector ({error})", stacklevel=2)
                return np.eye(1, self.dim, dtype=np.float32)
            raise ConfigError(
                f"{self._client.base_url} refused to embed with model {self.model!r} ({error}). "
                "Check embedder_url, embedder_model and the key (ATOMMEM_EMBEDDER_API_KEY)."
            ) from error
        try:
            items = {item["index"]: item["embedding"] for item in reply["data"]}
            return np.array([items[index] for index in range(len(texts))], dtype=np.float32)
        except (LookupError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{self._client.base_url}/v1/embeddings did not return embeddings of {len(texts)} "
                f"texts ({error}). Check that it is an embedding server of one model."
            ) from error


def _directions(vectors: Vectors, model: str) -> Vectors:
    rows, lost = unit_rows(vectors)
    if lost:
        warnings.warn(
            f"{model}: vectors that are zero or not finite were replaced by the first unit vector; "
            "check the dtype of a model in half precision",
            stacklevel=3,
        )
    return rows
