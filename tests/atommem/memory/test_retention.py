"""Retention rules: ours against hand-made stores, and a user's found by its dotted path."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.actions import Action
from atommem.config import MemoryConfig
from atommem.errors import ConfigError
from atommem.memory import admission, retention
from atommem.memory.columns import Columns
from atommem.memory.entries import Entry, Source
from atommem.memory.index import VectorIndex
from atommem.memory.operations import Outcome, operation_from_json, to_json
from atommem.memory.retention import Eviction, make_retention
from atommem.memory.rules import Candidate, StoreState
from atommem.memory.working import WorkingMemory
from tests.atommem.memory.toys import CREATE, READ, by_policy, memory, texts
from tests.fakes import WordEmbedder, WordTokenizer

UNIT = np.array([1, 0], dtype=np.float32)


def store(last_shown: list[int | None]) -> StoreState:
    entries = {10 + i: Entry(10 + i, "text", i, i, last_shown=step) for i, step in enumerate(last_shown)}
    index = VectorIndex(2)
    for entry_id in entries:
        index.put(entry_id, UNIT)
    return StoreState(entries, index, lambda: Columns(entries, index), 9, len(entries), (0,))


@pytest.mark.parametrize(
    ("name", "last_shown", "decision"),
    [
        ("reject", [5, 1, 3], Eviction(None, "the store is full")),
        ("fifo", [5, 1, 3], Eviction(10, "oldest, of step 0", 0)),
        ("lru", [5, 3, 3], Eviction(11, "unused since step 3", 3)),
        ("lru", [5, None, 3], Eviction(11, "unused since step 1", 1)),
        ("lru", [2, 2, None], Eviction(10, "unused since step 2", 2)),
    ],
)
def test_our_rules(name: str, last_shown: list[int | None], decision: Eviction) -> None:
    candidate = Candidate("new", UNIT, Source(9))
    assert make_retention(name).evict(candidate, store(last_shown)) == decision


def test_ours_are_entry_points_as_a_users_are() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["atommem.retention"] == dict(retention.OURS)
    assert project["entry-points"]["atommem.admission"] == dict(admission.OURS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lrv", r"there is no 'lrv'; did you mean lru\? known are .*, lru, .*, or give"),
        ("tests.atommem.memory.test_retention:Missing", "has no attribute 'Missing'"),
        ("nowhere.at.all:Rule", "cannot be loaded"),
    ],
)
def test_what_cannot_be_a_rule(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WorkingMemory(WordEmbedder(), WordTokenizer(), MemoryConfig(retention=name))


class Nearest:
    """Gives up what the new entry is nearest to, and keeps what it saw."""

    seen: list[tuple[Candidate, StoreState]] = []  # noqa: RUF012

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        self.seen.append((candidate, store))
        cosines = store.vectors @ candidate.vector
        ((entry, score),) = store.search(candidate.vector, 1)
        assert store.ids[int(cosines.argmax())] == entry.id
        assert score == pytest.approx(float(cosines.max()), abs=1e-5)
        return Eviction(entry.id, f"like {candidate.text}", score)


NEAREST = f"{Nearest.__module__}:Nearest"


async def test_a_rule_sees_candidate_entries_and_vectors_and_is_logged() -> None:
    Nearest.seen.clear()
    m = memory(capacity=2, retention=NEAREST)
    await m.apply([Action(CREATE, "ann sings"), Action(CREATE, "bob hums"), Action(READ, "ann")], 0)
    delete, create, retrieve = await m.apply([Action(CREATE, "ann sings well")], 1, Source(1, "chunk 2"))
    assert texts(m) == {2: "bob hums", 3: "ann sings well"}
    assert (delete.entry_id, delete.actor, delete.reason) == (1, f"retention:{NEAREST}", "like ann sings well")
    assert delete.score == pytest.approx(0.816, abs=0.01)
    assert (create.actor, create.entry_id, retrieve.kind) == ("policy", 3, "retrieve")
    ((candidate, seen),) = Nearest.seen
    assert (candidate.text, candidate.source) == ("ann sings well", Source(1, "chunk 2"))
    assert (seen.step, seen.capacity) == (1, 2)
    with pytest.raises(TypeError):
        seen.entries[1] = seen.entries[2]  # type: ignore[index]


class Liar:
    def evict(self, candidate: Candidate, store: StoreState) -> Any:
        return Eviction(99, "no such entry")


async def test_a_rule_that_names_no_entry_is_an_error_and_nothing_is_applied() -> None:
    m = memory(capacity=1, retention=f"{Liar.__module__}:Liar")
    await m.apply([Action(CREATE, "one")], 0)
    with pytest.raises(ConfigError, match="evicts entry 99"):
        await m.apply([Action(READ, "one"), Action(CREATE, "two")], 1)
    assert (texts(m), m.contents.query, len(m.log)) == ({1: "one"}, None, 1)


async def test_a_memory_restored_into_a_smaller_capacity_shrinks_at_its_next_create() -> None:
    m = memory()
    await m.apply([Action(CREATE, text) for text in ("one", "two", "three")], 0)
    config = MemoryConfig(capacity=2, retention="fifo")
    m = await WorkingMemory.restore(m.snapshot(), WordEmbedder(), WordTokenizer(), config)
    operations = await m.apply([Action(CREATE, "four")], 1)
    assert [operation.outcome for operation in by_policy(operations)] == [Outcome.APPLIED]
    assert list(texts(m).values()) == ["three", "four"]


class Measured:
    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        return Eviction(None, "too near", (store.vectors @ candidate.vector).max())


async def test_a_score_that_a_rule_counted_in_numpy_can_be_logged() -> None:
    m = memory(capacity=1, retention="tests.atommem.memory.test_retention:Measured")
    (*_, refused) = await m.apply([Action(CREATE, "ann"), Action(CREATE, "ann")], 0)
    assert operation_from_json(json.loads(json.dumps(to_json(refused)))) == refused
