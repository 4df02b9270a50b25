"""The files that a reproduction needs of its user: published tables are shipped, data and models are not."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from atommem.embedding.embedder import TextKind, Vectors
from atommem.envs.task_files import replacing
from atommem.errors import ConfigError, DataError
from atommem.plugins import find_file

HUB_MODEL = "sentence-transformers/all-MiniLM-L6-v2"


def published_tables(name: str) -> Mapping[str, Any]:
    """What ``configs/reproduce/NAME.yaml`` keeps of a publication."""
    found: Mapping[str, Any] = yaml.safe_load(
        find_file("name", name, "reproduce").read_text(encoding="utf-8")
    )
    return found


def user_file(folder: Path | None, places: Sequence[str], where: str) -> Path:
    """The first of `places` that the folder has.

    Args:
        folder: ``--data``.
        places: Paths below it.
        where: Where to get the file, and under which licence; for the error.

    Raises:
        ConfigError: No folder is given.
        DataError: It holds none of them.
    """
    if folder is None:
        raise ConfigError(f"no data is given: --data FOLDER with {places[0]}. {where}")
    for place in places:
        if (folder / place).is_file():
            return folder / place
    raise DataError(f"{folder} has no {' or '.join(places)}. {where}")


def add_data_flag(parser: argparse.ArgumentParser, files: str) -> None:
    """``--data``."""
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help=f"Folder of yours with {files}."
    )


def add_embedder_flag(parser: argparse.ArgumentParser) -> None:
    """``--embedder_model``."""
    parser.add_argument(
        "--embedder_model",
        default=None,
        help=f"A sentence-transformers folder or hub name; default: minilm in $ATOMMEM_MODELS, else {HUB_MODEL}.",
    )


def embed_all(texts: Sequence[str], model: str | None, cache: Path) -> Vectors:
    """The texts' vectors: shape (n, dim), float32, unit norm; kept in `cache` by model and texts.

    Raises:
        ConfigError: There is no such model.
    """
    made = Path(os.environ.get("ATOMMEM_MODELS", ".cache")) / "minilm"
    model = model or (str(made) if made.is_dir() else HUB_MODEL)
    digest = hashlib.sha256(
        "\0".join([Path(model).name, *texts]).encode("utf-8", "replace")
    ).hexdigest()[:16]
    path = cache / f"vectors-{digest}.npy"
    if path.is_file():
        kept: Vectors = np.load(path)
        return kept
    from atommem.embedding.sentence_transformer import SentenceTransformerEmbedder

    embedder = SentenceTransformerEmbedder(model)

    async def embed() -> Vectors:
        try:
            return await embedder.embed(texts, "entry")
        finally:
            await embedder.close()

    vectors = asyncio.run(embed())
    with replacing(path) as draft, draft.open("wb") as file:
        np.save(file, vectors)
    return vectors


class KeptVectors:
    """An embedder of texts that were embedded before (`embed_all`): for banks of them.

    Args:
        texts: All that it will be asked for.
        vectors: Theirs: shape (n, dim).
    """

    id = "kept"

    def __init__(self, texts: Sequence[str], vectors: Vectors) -> None:
        self._places = {text: place for place, text in enumerate(texts)}
        self._vectors = vectors
        self.dim = vectors.shape[1]

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """Their rows; KeyError for another text."""
        rows: Vectors = self._vectors[[self._places[text] for text in texts]]
        return rows

    async def close(self) -> None:
        """Nothing to free."""
