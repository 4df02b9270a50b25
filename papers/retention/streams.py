"""Labelled streams of texts, and what a store of limited size keeps of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from atommem.actions import Action
from atommem.config import MemoryConfig
from atommem.embedding.embedder import Embedder, Vectors
from atommem.envs.benchmarks.locomo import parse_locomo
from atommem.envs.benchmarks.rows import read_rows
from atommem.envs.synthetic.prose import RELATIONS, Statement, get_prose
from atommem.envs.task import Question, Task
from atommem.errors import DataError
from atommem.memory.log import Source
from atommem.memory.memory import WorkingMemory
from atommem.memory.store import best
from atommem.tokens import ApproximateTokenizer
from papers.inputs import StoredVectors

_AS_WRITTEN = {"other": "{question}"}
_ALL = 10**6

RECALLED = 6
"""Entries shown for a question."""


@dataclass(frozen=True)
class Stream:
    """Texts in their order, and what is asked when all were read.

    Attributes:
        name: Of a conversation; what is fitted on one is never tried on it.
        texts: One entry each.
        questions: Texts of the questions, where there are any.
        evidence: For each question the places of the texts that it needs.
    """

    name: str
    texts: tuple[str, ...]
    questions: tuple[str, ...]
    evidence: tuple[tuple[int, ...], ...]

    def needs(self) -> list[int]:
        """How many questions need each text, length len(texts)."""
        counts = Counter(place for places in self.evidence for place in places)
        return [counts[place] for place in range(len(self.texts))]


def read_streams(path: str | Path) -> list[Stream]:
    """Read LoCoMo, or rows ``{"stream": NAME, "text": ..., "needed": COUNT}``.

    LoCoMo's questions of categories 1 to 4 with evidence count.

    Raises:
        DataError: The file is neither, or damaged.
    """
    rows = list(read_rows(path))
    if rows and {"conversation", "qa"} <= rows[0].values.keys():
        return [
            _of_task(
                task.metadata["sample_id"],
                [_strip_speech(document.text) for document in task.documents],
                task.questions,
            )
            for row in rows
            for task in parse_locomo(row, _ALL, _AS_WRITTEN)
        ]
    texts: dict[str, list[tuple[str, int]]] = {}
    for row in rows:
        needed = row.values.get("needed")
        if not isinstance(needed, (bool, int)) or needed < 0:
            raise row.error("needed", f"is {needed!r}: how many questions need the text, 0 or more")
        texts.setdefault(str(row.values.get("stream", "")), []).append(
            (row.text("text"), int(needed))
        )
    if not texts:
        raise DataError(
            f"{path} has no rows: give LoCoMo's file, or rows with stream, text and needed."
        )
    return [
        Stream(
            name,
            tuple(text for text, _ in pairs),
            ("",) * sum(needed for _, needed in pairs),
            tuple((place,) for place, (_, needed) in enumerate(pairs) for _ in range(needed)),
        )
        for name, pairs in texts.items()
    ]


def _strip_speech(turn: str) -> str:
    """A turn with its speaker, an image's caption behind what was said."""
    return _CAPTION.sub(r" \1", turn).strip()


_CAPTION = re.compile(r" ?\[shares an image: (.*)\]$", re.DOTALL)


def _of_task(name: str, texts: Sequence[str], questions: Sequence[Question]) -> Stream:
    asked = [
        (question.text, tuple(sorted(question.metadata["documents"])))
        for question in questions
        if question.metadata["category"] != "adversarial" and question.metadata.get("documents")
    ]
    return Stream(
        name, tuple(texts), tuple(text for text, _ in asked), tuple(places for _, places in asked)
    )


@dataclass(frozen=True)
class Embedded:
    """A stream with vectors of texts (n, dim) and questions (questions, dim)."""

    stream: Stream
    texts: Vectors
    questions: Vectors


async def embed_streams(streams: Sequence[Stream], embedder: Embedder) -> list[Embedded]:
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


async def keep(given: Embedded, retention: str, capacity: int | None, seed: int = 0) -> list[int]:
    """Return the places of the texts that a store of `capacity` keeps, one create a step."""
    config = MemoryConfig(capacity=capacity, retention=retention, entry_tokens=10**6)
    memory = WorkingMemory(
        StoredVectors(given.stream.texts, given.texts), ApproximateTokenizer(), config, seed=seed
    )
    for place, text in enumerate(given.stream.texts):
        await memory.apply(
            [Action("create", text)], place, Source(place, f"{given.stream.name} {place}")
        )
    return [entry.created for entry in memory.entries()]


@dataclass(frozen=True)
class Scores:
    """Scores of questions: all and any evidence kept, and recall; shapes (questions,).

    Attributes:
        references: Number of kept texts over all questions.
    """

    all_kept: Vectors
    any_kept: Vectors
    recall: Vectors
    references: int


def score(given: Embedded, places: Sequence[int]) -> Scores:
    """Score kept texts by the questions asked at the end."""
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


def _needed_statements(task: Task) -> tuple[list[Statement], set[Statement]]:
    """All statements of a task, and those that its questions need."""
    prose = get_prose(task.metadata["prose"])
    told = [
        statement for document in task.documents for statement in prose.statements(document.text)
    ]
    facts = {(fact.relation, fact.subject): fact for fact in told if fact.kind == "fact"}
    needed = set()
    for question in task.questions:
        name, hops = prose.asked(question.text)
        for relation in RELATIONS[-hops:]:
            link = facts[relation, name]
            needed.add(link)
            name, subject = link.value, link.subject
        needed |= {
            moved for moved in told if moved.kind == "correction" and moved.subject == subject
        }
    return told, needed


def needs_of(tasks: Iterable[Task]) -> dict[str, dict[str, int]]:
    """Return by task the texts of needed entries, for the oracle.

    A corrected home is needed in both forms.
    """
    found = {}
    for task in tasks:
        prose = get_prose(task.metadata["prose"])
        facts = [
            Statement("fact", needed.subject, needed.relation, needed.value)
            for needed in _needed_statements(task)[1]
        ]
        found[task.id] = {prose.sentence(fact): 1 for fact in facts}
    return found


def labelled(tasks: Iterable[Task]) -> list[Stream]:
    """The facts of each task as a stream of texts, of which its questions need some."""
    streams = []
    for task in tasks:
        told, needed = _needed_statements(task)
        facts = [statement for statement in told if statement.kind == "fact"]
        places = tuple((place,) for place, fact in enumerate(facts) if fact in needed)
        sentence = get_prose(task.metadata["prose"]).sentence
        streams.append(Stream(task.id, tuple(map(sentence, facts)), ("",) * len(places), places))
    return streams
