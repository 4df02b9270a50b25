"""Retention and admission: our rules against hand-made stores, a user's by its dotted path; the log has them all."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.actions import Action
from atommem.config import MemoryConfig
from atommem.errors import ConfigError, OutageError
from atommem.memory import admission, retention
from atommem.memory.admission import Accepted, Admission, Merged, Refused
from atommem.memory.columns import Columns
from atommem.memory.contents import replay
from atommem.memory.entries import Entry, Source
from atommem.memory.index import VectorIndex
from atommem.memory.operations import Outcome, operation_from_json, to_json
from atommem.memory.retention import Eviction, make_retention
from atommem.memory.rules import Candidate, StoreState
from atommem.memory.working import WorkingMemory
from tests.atommem.memory.toys import CREATE, DELETE, READ, UPDATE, by_policy, memory, shown, texts
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
    turn = [Action(CREATE, "ann sings well"), Action(UPDATE, "ann hums", 1)]
    delete, create, update, retrieve = await m.apply(turn, 1, Source(1, "chunk 2"))
    assert texts(m) == {2: "bob hums", 3: "ann sings well"}
    assert (delete.entry_id, delete.actor, delete.reason) == (1, f"retention:{NEAREST}", "like ann sings well")
    assert delete.score == pytest.approx(0.816, abs=0.01)
    assert (delete.kind, delete.before) == ("delete", "ann sings")
    assert (create.actor, create.entry_id, retrieve.kind) == ("policy", 3, "retrieve")
    assert update.outcome is Outcome.UNKNOWN_HANDLE, "its entry has gone"
    ((candidate, seen),) = Nearest.seen
    assert (candidate.text, candidate.source) == ("ann sings well", Source(1, "chunk 2"))
    assert (seen.step, seen.capacity) == (1, 2)
    with pytest.raises(TypeError):
        seen.entries[1] = seen.entries[2]  # type: ignore[index]


async def test_a_memory_restored_into_a_smaller_capacity_shrinks_at_its_next_create() -> None:
    m = memory()
    await m.apply([Action(CREATE, text) for text in ("one", "two", "three")], 0)
    config = MemoryConfig(capacity=2, retention="fifo")
    m = await WorkingMemory.restore(m.snapshot(), WordEmbedder(), WordTokenizer(), config)
    operations = await m.apply([Action(CREATE, "four")], 1)
    assert [operation.outcome for operation in by_policy(operations)] == [Outcome.APPLIED]
    assert list(texts(m).values()) == ["three", "four"]


class Measured:
    """Refuses what is near what it has, with a score that numpy counted; of others it says what is wrong."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        nearest = (store.vectors @ candidate.vector).max()
        return Eviction(None, "too near", nearest) if nearest > 0.9 else Eviction(99, "no such entry")


async def test_what_a_rule_says_is_checked_and_can_be_logged() -> None:
    m = memory(capacity=1, retention=f"{Measured.__module__}:Measured")
    (*_, refused) = await m.apply([Action(CREATE, "one"), Action(CREATE, "one")], 0)
    assert operation_from_json(json.loads(json.dumps(to_json(refused)))) == refused
    with pytest.raises(ConfigError, match="evicts entry 99"):
        await m.apply([Action(READ, "one"), Action(CREATE, "two")], 1)
    assert (texts(m), m.contents.query, len(m.log)) == ({1: "one"}, None, 2)


class Careful:
    """Refuses what is short, merges what is near, as its text says."""

    def admit(self, candidate: Candidate, store: StoreState) -> Admission:
        if len(candidate.text) < 4:
            return Refused("too short", len(candidate.text))
        for entry, score in store.search(candidate.vector, 1):
            if score > 0.7:
                joined = f"{entry.text}; {candidate.text}" if "also" in candidate.text else None
                return Merged(entry.id, "near duplicate", joined, score)
        return Accepted()


CAREFUL = f"{Careful.__module__}:Careful"


@pytest.mark.parametrize(
    ("new", "after"), [("ann sings", "ann sings"), ("also ann sings now", "ann sings now; also ann sings now")]
)
async def test_a_refused_create_says_by_whom_and_a_merge_is_an_update_by_the_rule(new: str, after: str) -> None:
    m = memory(admission=CAREFUL, capacity=1)
    (refused,) = await m.apply([Action(CREATE, "abc")], 0)
    assert (refused.outcome, refused.after, refused.actor) == (Outcome.REJECTED, "abc", "policy")
    assert (refused.reason, refused.score) == (f"admission:{CAREFUL}: too short", 3)
    await m.apply([Action(CREATE, "ann sings now"), Action(READ, "ann sings now")], 0)
    create, update, _ = await m.apply([Action(CREATE, new)], 1)
    assert (create.kind, create.outcome, create.entry_id, create.after) == ("create", Outcome.MERGED, 1, new)
    assert (update.kind, update.entry_id, update.before, update.after) == ("update", 1, "ann sings now", after)
    assert (update.actor, update.reason) == (f"admission:{CAREFUL}", "near duplicate")
    assert update.score is not None
    assert update.score > 0.7
    assert texts(m) == {1: after}
    assert replay(m.log) == m.contents
    # What is searched is what the entry says now.
    rows = await m._resources.embedder.embed([after], "entry")
    assert np.allclose(m.vectors().rows[:1], rows, atol=1e-6)


class MergeFails(WordEmbedder):
    async def embed(self, texts: Sequence[str], kind: str) -> Any:
        if any(";" in text for text in texts):
            raise OutageError("gone")
        return await super().embed(texts, kind)


async def test_an_outage_in_the_middle_of_a_completion_takes_all_of_it_back() -> None:
    m = memory(MergeFails(), admission=CAREFUL)
    await m.apply([Action(CREATE, "ann sings now"), Action(CREATE, "bobby flies"), Action(READ, "bobby")], 0)
    before = (m.contents.copy(), m.view(), m.log, m.vectors().rows.tolist())
    turn = [
        Action(DELETE, handle=1),
        Action(UPDATE, "ann sings then", 2),
        Action(CREATE, "carol writes"),
        Action(READ, "carol"),
        Action(CREATE, "ann also sings then"),
    ]
    with pytest.raises(OutageError):
        await m.apply(turn, 1)
    assert (m.contents, m.view(), m.log, m.vectors().rows.tolist()) == before
    await m.apply([Action(CREATE, "carol writes"), Action(READ, "carol")], 1)
    assert shown(m)[0] == (1, "carol writes")
    assert list(texts(m)) == [1, 2, 3]
