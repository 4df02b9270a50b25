"""Embeddings from a sentence-transformers model in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from atommem.embedding.embedder import EmbeddingCounts, TextKind, Vectors, unit_rows
from atommem.errors import ConfigError
from atommem.hub import hub_name, not_loaded, only_here
from atommem.text_safety import clean


class SentenceTransformerEmbedder:
    """Embed in a worker thread, on the first GPU if there is one.

    Queries get the model's query prompt and entries its document prompt, if it defines them. Texts
    beyond the model's longest input are cut and counted.

    Args:
        model: A hub name (NAME or NAME@REVISION) or a folder.

    Raises:
        ConfigError: The model does not exist, or its revision is empty.
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
                f"{not_loaded(name, error)} "
                "It may be a folder; --embedder hashing needs no model."
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
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._encode, list(texts), kind
        )

    async def close(self) -> None:
        """End the worker thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _encode(self, texts: list[str], kind: TextKind) -> Vectors:
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
