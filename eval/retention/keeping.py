"""A stream through a store of limited size: what a keeper has left of it, and what that is good for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from atommem.actions import Action
from atommem.config import EmbedderConfig, MemoryConfig
from atommem.embedding import make_embedder
from atommem.embedding.embedder import Embedder, Vectors
from atommem.eval.reproduce.user_files import KeptVectors
from atommem.eval.retention.turns import Stream
from atommem.memory.log import Source
from atommem.memory.memory import WorkingMemory
from atommem.memory.store import best
from atommem.rough_tokens import RoughTokenizer

_FLAGS = ("embedder", "embedder_model", "embedder_url")
RECALLED = 6
"""Entries that a question is shown."""


@dataclass(frozen=True)
class Embedded:
    """A stream with the vectors of its texts and questions, shapes (n, dim) and (questions, dim)."""

    stream: Stream
    texts: Vectors
    questions: Vectors


def add_embedder_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that name the embedder of texts."""
    for item in fields(EmbedderConfig):
        if item.name in _FLAGS:
            parser.add_argument(f"--{item.name}", default=item.default, help=item.metadata["help"])


def embedder_of(arguments: argparse.Namespace) -> Embedder:
    """The embedder that these flags name; raises ConfigError where they do not fit together."""
    return make_embedder(EmbedderConfig(**{name: getattr(arguments, name) for name in _FLAGS}))


async def embedded(streams: Sequence[Stream], embedder: Embedder) -> list[Embedded]:
    """Each text once. Raises OutageError where the embedder is out of reach."""
    found = []
    for stream in streams:
        texts = await embedder.embed(stream.texts, "entry")
        asked = stream.questions if any(stream.questions) else ()
        questions = (
            await embedder.embed(asked, "query")
            if asked
            else np.zeros((0, texts.shape[1]), np.float32)
        )
        found.append(Embedded(stream, texts, questions))
    return found


async def kept(given: Embedded, retention: str, capacity: int | None, seed: int = 0) -> list[int]:
    """The places of the texts that a store of `capacity` still has when all were created, one a step."""
    config = MemoryConfig(capacity=capacity, retention=retention, entry_tokens=10**6)
    memory = WorkingMemory(
        KeptVectors(given.stream.texts, given.texts), RoughTokenizer(), config, seed=seed
    )
    for place, text in enumerate(given.stream.texts):
        await memory.apply(
            [Action("create", text)], place, Source(place, f"{given.stream.name} {place}")
        )
    return [entry.created for entry in memory.entries()]


@dataclass(frozen=True)
class Scores:
    """Of one stream's questions, shapes (questions,): all and any evidence kept, and recall among the best entries.

    Attributes:
        references: Pairs of a question and a text that it needs, of which the text was kept: a count.
    """

    all_kept: Vectors
    any_kept: Vectors
    recall: Vectors
    references: int


def score(given: Embedded, places: Sequence[int]) -> Scores:
    """What the kept texts are good for, asked when the stream is over: those most like the question are shown."""
    held = np.array(sorted(places), dtype=np.int64)
    rows = given.texts[held]
    everything, anything, recall, references = [], [], [], 0
    for number, evidence in enumerate(given.stream.evidence):
        there = np.isin(evidence, held)
        references += int(there.sum())
        everything.append(float(there.all()))
        anything.append(float(there.any()))
        if len(given.questions):
            shown = {place for place, _ in best(rows @ given.questions[number], held, RECALLED)}
            recall.append(sum(place in shown for place in evidence) / len(evidence))
    return Scores(np.array(everything), np.array(anything), np.array(recall), references)
