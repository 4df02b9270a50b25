"""Inputs of the experiments: users' files, vectors, and the demo's policy."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from atommem.config import EmbedderConfig
from atommem.embedding import make_embedder
from atommem.embedding.embedder import TextKind, Vectors
from atommem.envs.benchmarks.rows import read_rows
from atommem.errors import DataError
from atommem.files import replacing

HUB_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
LOCOMO = (
    "Get data/locomo10.json from github.com/snap-research/LoCoMo (CC BY-NC 4.0: no commercial "
    "use). It is read in place and never copied."
)


def load_published(name: str) -> Mapping[str, Any]:
    """Load the published numbers and settings of a paper (``papers/published.yaml``)."""
    text = Path(__file__).with_name("published.yaml").read_text(encoding="utf-8")
    published: Mapping[str, Any] = yaml.safe_load(text)[name]
    return published


def find_user_file(folder: Path, places: Sequence[str], source: str) -> Path:
    """Return the first of `places` in the user's folder; raises DataError that names `source`."""
    for place in places:
        if (folder / place).is_file():
            return folder / place
    raise DataError(f"{folder} has no {' or '.join(places)}. {source}")


def read_json_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a file, of which null is absent; DataError for another file."""
    return [row.values for row in read_rows(path)]


def add_embedder_flag(parser: argparse.ArgumentParser) -> None:
    """Add ``--embedder_model``."""
    help_text = "A sentence-transformers folder or hub name; default: minilm in $ATOMMEM_MODELS, "
    parser.add_argument("--embedder_model", help=f"{help_text}else {HUB_MODEL}.")


def default_embedder_model() -> str:
    """Return the local folder of MiniLM if it exists, else its hub name."""
    local = Path(os.environ.get("ATOMMEM_MODELS", ".cache")) / "minilm"
    return str(local) if local.is_dir() else HUB_MODEL


def embed_all(texts: Sequence[str], model: str | None, cache: Path) -> Vectors:
    """Embed texts, or load their vectors from `cache`: shape (n, dim), float32, unit norm."""
    model = model or default_embedder_model()
    key = "\0".join([Path(model).name, *texts]).encode("utf-8", "replace")
    path = cache / f"vectors-{hashlib.sha256(key).hexdigest()[:16]}.npy"
    if path.is_file():
        stored: Vectors = np.load(path)
        return stored
    embedder = make_embedder(EmbedderConfig("sentence_transformer", model))

    async def embed() -> Vectors:
        try:
            return await embedder.embed(texts, "entry")
        finally:
            await embedder.close()

    vectors = asyncio.run(embed())
    with replacing(path) as draft, draft.open("wb") as file:
        np.save(file, vectors)
    return vectors


class StoredVectors:
    """Embedder that looks up vectors computed earlier, of shape (n, dim)."""

    id = "stored"

    def __init__(self, texts: Sequence[str], vectors: Vectors) -> None:
        self._rows = {text: row for row, text in enumerate(texts)}
        self._vectors = vectors
        self.dim = vectors.shape[1]

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """Return the stored rows; raises KeyError for an unknown text."""
        vectors: Vectors = self._vectors[[self._rows[text] for text in texts]]
        return vectors

    async def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Conversation:
    """One LoCoMo conversation as A-MAC's code reads it."""

    name: str
    texts: tuple[str, ...]  # each turn, without speaker and image caption
    needed: tuple[bool, ...]  # whether a question of any category lists the turn's id as evidence
    speakers: tuple[str, ...]
    days: tuple[date, ...]  # of the sessions


def read_conversations(folder: Path) -> list[Conversation]:
    """Read all conversations of the user's LoCoMo file, in its order."""
    path = find_user_file(folder, ("locomo10.json", "locomo/locomo10.json"), LOCOMO)
    try:
        return [_parse_conversation(row) for row in read_json_rows(path)]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not LoCoMo's layout ({error!r}). {LOCOMO}") from error


def locomo_turns(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the turns of a LoCoMo conversation in order, each with its session's ``date``."""
    sessions = row["conversation"]
    numbers = sorted(
        int(found[1]) for name in sessions if (found := re.fullmatch(r"session_(\d+)", name))
    )
    return [
        {**turn, "date": sessions.get(f"session_{number}_date_time", "")}
        for number in numbers
        for turn in sessions[f"session_{number}"]
    ]


def _day(text: str) -> date:
    """Return the day of "1:56 pm on 8 May, 2023"; without one, the first of 2023."""
    found = re.search(r"\d+ [A-Z][a-z]+,? \d{4}", text)
    if found is None:
        return date(2023, 1, 1)
    return datetime.strptime(found[0].replace(",", ""), "%d %B %Y").date()


def _parse_conversation(row: Mapping[str, Any]) -> Conversation:
    evidence = {turn for question in row["qa"] for turn in question.get("evidence", ())}
    turns = locomo_turns(row)
    texts = tuple(str(turn.get("text") or "") for turn in turns)
    needed = tuple(turn.get("dia_id") in evidence for turn in turns)
    speakers = tuple(str(turn.get("speaker") or "") for turn in turns)
    days = tuple(_day(turn["date"]) for turn in turns)
    return Conversation(row["sample_id"], texts, needed, speakers, days)


def load_demo(policy: Path, recipe: Any, out: Path, seed: int = 0) -> Any:
    """Make a demo in `out` that starts from the policy in a folder, with its vocabulary."""
    from rich.console import Console

    from atommem.demo.run import Demo
    from atommem.policy.local import LocalPolicy

    demo = Demo(recipe, out, seed, Console(highlight=False, soft_wrap=True))
    loaded = LocalPolicy.from_pretrained(policy)
    demo.model, demo.tokenizer = loaded.model, loaded.tokenizer
    return demo
