"""Labelled streams of texts, and the questions that a store of limited size can still answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atommem.actions import Action
from atommem.config import MemoryConfig
from atommem.embedding.embedder import Embedder, Vectors
from atommem.envs.synthetic.world import RELATIONS, Statement, get_prose
from atommem.envs.task import Task
from atommem.errors import DataError
from atommem.memory.log import Source
from atommem.memory.memory import WorkingMemory
from atommem.memory.store import best
from atommem.tokens import ApproximateTokenizer
from papers.inputs import StoredVectors, locomo_turns, read_json_rows
from papers.retention.rules import RULE_PATHS

RETRIEVED = 6
"""Entries shown for a question."""
ADVERSARIAL = 5
"""LoCoMo's category of questions without an answer."""


@dataclass(frozen=True)
class Stream:
    """Texts in their order, and questions that are asked when all were read."""

    name: str  # a scorer that was fitted on a stream is never tested on it
    texts: tuple[str, ...]
    questions: tuple[str, ...]  # texts, if known
    evidence: tuple[tuple[int, ...], ...]  # for each question the places of the texts that it needs

    def needs(self) -> list[int]:
        """Return how many questions need each text."""
        counts = Counter(place for places in self.evidence for place in places)
        return [counts[place] for place in range(len(self.texts))]


def read_streams(path: Path) -> list[Stream]:
    """Read LoCoMo, or rows ``{"stream": NAME, "text": ..., "needed": COUNT}``.

    LoCoMo's questions of categories 1 to 4 with evidence count.

    Raises:
        DataError: The file is neither, or damaged.
    """
    rows = read_json_rows(path)
    try:
        if rows and {"conversation", "qa"} <= rows[0].keys():
            return [_parse_conversation(row) for row in rows]
        labelled: dict[str, list[tuple[str, int]]] = {}
        for row in rows:
            pairs = labelled.setdefault(str(row.get("stream", "")), [])
            pairs.append((row["text"], int(row["needed"])))
    except (KeyError, TypeError, ValueError) as error:
        message = "give LoCoMo's file, or rows with stream, text and needed (a count)"
        raise DataError(f"{path}: {message} ({error!r}).") from error
    streams = []
    for name, pairs in labelled.items():
        texts, counts = zip(*pairs, strict=True)
        evidence = tuple((place,) for place, count in enumerate(counts) for _ in range(count))
        streams.append(Stream(name, texts, ("",) * len(evidence), evidence))
    return streams


def _parse_conversation(row: Mapping[str, Any]) -> Stream:
    turns = locomo_turns(row)
    places = {turn["dia_id"]: place for place, turn in enumerate(turns)}
    texts = []
    for turn in turns:
        parts = [f"{turn['speaker']}:", turn.get("text"), turn.get("blip_caption")]
        texts.append(" ".join(filter(None, parts)).strip())
    asked = []
    for question in row["qa"]:
        ids = re.findall(r"D:?(\d+):(\d+)", " ".join(question.get("evidence", ())))
        turn_ids = {f"D{int(session)}:{int(turn)}" for session, turn in ids}
        needed = tuple(sorted(places[turn] for turn in turn_ids & places.keys()))
        if needed and question["category"] != ADVERSARIAL:
            asked.append((question["question"].strip(), needed))
    questions, evidence = zip(*asked, strict=True)
    return Stream(row["sample_id"], tuple(texts), questions, evidence)


@dataclass(frozen=True)
class Embedded:
    """A stream with vectors of texts (n, dim) and questions (questions, dim)."""

    stream: Stream
    texts: Vectors
    questions: Vectors


async def embed_streams(streams: Sequence[Stream], embedder: Embedder) -> list[Embedded]:
    """Embed each text once."""
    found = []
    for stream in streams:
        texts = await embedder.embed(stream.texts, "entry")
        questions = np.zeros((0, texts.shape[1]), np.float32)
        if any(stream.questions):
            questions = await embedder.embed(stream.questions, "query")
        found.append(Embedded(stream, texts, questions))
    return found


async def keep(item: Embedded, retention: str, capacity: int | None, seed: int = 0) -> list[int]:
    """Return the places of the texts that a store of `capacity` keeps, one create a step."""
    rule = RULE_PATHS.get(retention, retention)
    config = MemoryConfig(capacity=capacity, retention=rule, entry_tokens=10**6)
    embedder = StoredVectors(item.stream.texts, item.texts)
    memory = WorkingMemory(embedder, ApproximateTokenizer(), config, seed=seed)
    for place, text in enumerate(item.stream.texts):
        source = Source(place, f"{item.stream.name} {place}")
        await memory.apply([Action("create", text)], place, source)
    return [entry.created for entry in memory.entries()]


@dataclass(frozen=True)
class Scores:
    """Scores of questions: all and any evidence kept, and recall; shapes (questions,)."""

    all_kept: Vectors
    any_kept: Vectors
    recall: Vectors
    references: int  # number of kept texts over all questions


def score(item: Embedded, places: Sequence[int]) -> Scores:
    """Score kept texts by the questions asked at the end."""
    held = np.array(sorted(places), dtype=np.int64)
    rows = item.texts[held]
    all_kept, any_kept, recall, references = [], [], [], 0
    for number, evidence in enumerate(item.stream.evidence):
        there = np.isin(evidence, held)
        references += int(there.sum())
        all_kept.append(float(there.all()))
        any_kept.append(float(there.any()))
        if len(item.questions):
            shown = {place for place, _ in best(rows @ item.questions[number], held, RETRIEVED)}
            recall.append(sum(place in shown for place in evidence) / len(evidence))
    return Scores(np.array(all_kept), np.array(any_kept), np.array(recall), references)


def _needed_statements(task: Task) -> tuple[list[Statement], set[Statement]]:
    """Return all statements of a synthetic task, and those that its questions need."""
    prose = get_prose(task.metadata["prose"])
    stated = [
        statement for document in task.documents for statement in prose.statements(document.text)
    ]
    facts = {(fact.relation, fact.subject): fact for fact in stated if fact.kind == "fact"}
    corrections = [statement for statement in stated if statement.kind == "correction"]
    needed = set()
    for question in task.questions:
        name, hops = prose.asked(question.text)
        for relation in RELATIONS[-hops:]:
            link = facts[relation, name]
            needed.add(link)
            name, subject = link.value, link.subject
        needed |= {moved for moved in corrections if moved.subject == subject}
    return stated, needed


def needs_of(tasks: Iterable[Task]) -> dict[str, dict[str, int]]:
    """Return by task the texts of needed entries; a corrected home is needed in both forms."""
    found = {}
    for task in tasks:
        prose = get_prose(task.metadata["prose"])
        facts = [
            Statement("fact", one.subject, one.relation, one.value)
            for one in _needed_statements(task)[1]
        ]
        found[task.id] = {prose.sentence(fact): 1 for fact in facts}
    return found


def labelled(tasks: Iterable[Task]) -> list[Stream]:
    """Return the facts of each task as a stream, of which its questions need some."""
    streams = []
    for task in tasks:
        stated, needed = _needed_statements(task)
        facts = [statement for statement in stated if statement.kind == "fact"]
        places = tuple((place,) for place, fact in enumerate(facts) if fact in needed)
        sentence = get_prose(task.metadata["prose"]).sentence
        streams.append(Stream(task.id, tuple(map(sentence, facts)), ("",) * len(places), places))
    return streams
