"""Retention and admission: our rules against hand-made stores, a user's by its dotted path; the log has them all."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.actions import Action
from atommem.config import MemoryConfig
from atommem.errors import ConfigError, OutageError
from atommem.memory import neighbours
from atommem.memory.admission import Accepted, Admission, Merged, Refused
from atommem.memory.columns import Columns
from atommem.memory.contents import replay
from atommem.memory.entries import Entry, Source
from atommem.memory.index import VectorIndex
from atommem.memory.operations import Outcome, operation_from_json, to_json
from atommem.memory.retention import Eviction, make_retention
from atommem.memory.rules import Candidate, StoreState
from atommem.memory.working import WorkingMemory
from atommem.rules.lru import when_used
from atommem.rules.rule import Rule
from atommem.rules.traceretain import LINEAR
from tests.atommem.memory.toys import CREATE, DELETE, READ, UPDATE, by_policy, memory, shown, texts
from tests.fakes import WordEmbedder, WordTokenizer

HERE = __name__
UNIT = np.array([1, 0], dtype=np.float32)


def store(last_shown: list[int | None]) -> StoreState:
    entries = {
        10 + i: Entry(10 + i, "text", i, i, last_shown=step) for i, step in enumerate(last_shown)
    }
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


NEAREST = f"{HERE}:Nearest"


async def test_a_rule_sees_candidate_entries_and_vectors_and_is_logged() -> None:
    Nearest.seen.clear()
    m = memory(capacity=2, retention=NEAREST)
    await m.apply([Action(CREATE, "ann sings"), Action(CREATE, "bob hums"), Action(READ, "ann")], 0)
    turn = [Action(CREATE, "ann sings well"), Action(UPDATE, "ann hums", 1)]
    delete, create, update, retrieve = await m.apply(turn, 1, Source(1, "chunk 2"))
    assert texts(m) == {2: "bob hums", 3: "ann sings well"}
    assert (delete.entry_id, delete.actor, delete.reason) == (
        1,
        f"retention:{NEAREST}",
        "like ann sings well",
    )
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
    m = await WorkingMemory(WordEmbedder(), WordTokenizer(), config).restore(m.snapshot())
    operations = await m.apply([Action(CREATE, "four")], 1)
    assert [operation.outcome for operation in by_policy(operations)] == [Outcome.APPLIED]
    assert list(texts(m).values()) == ["three", "four"]


class Measured:
    """Refuses what is near what it has, with a score that numpy counted; of others it says what is wrong."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        nearest = (store.vectors @ candidate.vector).max()
        return (
            Eviction(None, "too near", nearest) if nearest > 0.9 else Eviction(99, "no such entry")
        )


async def test_what_a_rule_says_is_checked_and_can_be_logged() -> None:
    m = memory(capacity=1, retention=f"{HERE}:Measured")
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


CAREFUL = f"{HERE}:Careful"


@pytest.mark.parametrize(
    ("new", "after"),
    [("ann sings", "ann sings"), ("also ann sings now", "ann sings now; also ann sings now")],
)
async def test_a_refused_create_says_by_whom_and_a_merge_is_an_update_by_the_rule(
    new: str, after: str
) -> None:
    m = memory(admission=CAREFUL, capacity=1)
    (refused,) = await m.apply([Action(CREATE, "abc")], 0)
    assert (refused.outcome, refused.after, refused.actor) == (Outcome.REJECTED, "abc", "policy")
    assert (refused.reason, refused.score) == (f"admission:{CAREFUL}: too short", 3)
    await m.apply([Action(CREATE, "ann sings now"), Action(READ, "ann sings now")], 0)
    create, update, _ = await m.apply([Action(CREATE, new)], 1)
    assert (create.kind, create.outcome, create.entry_id, create.after) == (
        "create",
        Outcome.MERGED,
        1,
        new,
    )
    assert (update.kind, update.entry_id, update.before, update.after) == (
        "update",
        1,
        "ann sings now",
        after,
    )
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
    await m.apply(
        [Action(CREATE, "ann sings now"), Action(CREATE, "bobby flies"), Action(READ, "bobby")], 0
    )
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


# What rules may do beside refusing and evicting: rate, sweep, observe, ask; and the numbers that they are given ----


class Tidy(Rule):
    """Gives up what has been there for some steps, and what was observed to fail."""

    def __init__(self, steps: int = 2) -> None:
        self.steps, self.failed = steps, set[int]()

    def sweep(self, store: StoreState) -> Sequence[Eviction]:
        old = [
            int(entry_id)
            for entry_id in store.ids[store.column("created") <= store.step - self.steps]
        ]
        failed = sorted(self.failed & set(store.entries) - set(old))
        return [
            *(Eviction(entry_id, "old", 1) for entry_id in old),
            *(Eviction(i, "failed") for i in failed),
        ]

    def observe(self, shown: Sequence[int], outcome: float, step: int) -> None:
        if outcome == 0:
            self.failed |= set(shown)


async def test_sweeps_are_logged_and_take_options() -> None:
    m = memory(retention=f"{HERE}:Tidy(steps=1)")
    await m.apply([Action(CREATE, "one"), Action(CREATE, "two")], 0)
    create, *deletes = await m.apply([Action(CREATE, "three")], 1)
    assert [(op.kind, op.entry_id, op.actor, op.reason, op.score) for op in deletes] == [
        ("delete", 1, f"retention:{HERE}:Tidy(steps=1)", "old", 1.0),
        ("delete", 2, f"retention:{HERE}:Tidy(steps=1)", "old", 1.0),
    ]
    assert (create.entry_id, texts(m)) == (3, {3: "three"})


async def test_what_is_observed_is_told_again_when_a_log_is_replayed() -> None:
    m = memory(retention=f"{HERE}:Tidy(steps=99)")
    await m.apply(
        [Action(CREATE, "ann sings"), Action(CREATE, "bob hums"), Action(READ, "ann sings")], 0
    )
    m.observe(0.0, 0, [1])
    m.observe(1.0, 0)
    assert [(e.uses, e.mean_outcome) for e in m.entries()] == [(2, 0.5), (1, 1.0)]
    resources = m._resources
    fresh = WorkingMemory(resources.embedder, resources.tokenizer, resources.config)
    taken_up = await fresh.restore(m.start, m.log)
    for one in (m.fork(), taken_up):
        await one.apply([], 1)
        assert texts(one) == {2: "bob hums"}
    # An undo that could not be made leaves the rule what it knew.
    await m.edit(2, None, 1)
    resources.embedder.fail = OutageError("away")  # type: ignore[attr-defined]
    with pytest.raises(OutageError):
        await m.undo(1)
    resources.embedder.fail = None  # type: ignore[attr-defined]
    await m.apply([], 2)
    assert texts(m) == {}


class Words(Rule):
    def rate(self, candidate: Candidate, store: StoreState) -> float:
        return len(candidate.text.split())


class Asks:
    """Asks for a rating before the actions of a completion are applied."""

    def __init__(self) -> None:
        self.known: dict[str, float] = {}

    async def prepare(self, texts: Sequence[str]) -> None:
        self.known |= {text: float(len(text)) for text in texts}

    def admit(self, candidate: Candidate, store: StoreState) -> Admission:
        return Accepted("long enough", self.known[candidate.text])


async def test_ratings_stand_in_the_log_and_in_the_entries() -> None:
    m = memory(retention=f"{HERE}:Words")
    (create,) = await m.apply([Action(CREATE, "ann sings well")], 0)
    assert (create.score, m.entries()[0].score) == (3, 3)
    await m.apply([Action(READ, "ann")], 1)
    await m.apply([Action(UPDATE, "ann sings", 1)], 2)
    assert m.entries()[0].score == 2
    m = memory(admission=f"{HERE}:Asks")
    (create,) = await m.apply([Action(CREATE, "ann")], 0)
    assert (create.reason, create.score) == (f"admission:{HERE}:Asks: long enough", 3)
    assert operation_from_json(json.loads(json.dumps(to_json(create)))) == create


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fifo(3)", r"write options as NAME\(option=value"),
        ("fifo(size=3)", "--size=3: unknown setting"),
        (f"{HERE}:Tidy(days=3)", "--days=3: unknown setting"),
        ("fito(size=3)", "did you mean fifo"),
        ("lrv", r"retention=lrv: unknown \(did you mean lru\?\)\. Give one of .*, lru, .*, or"),
        (f"{HERE}:Missing", "has no attribute 'Missing'"),
        ("nowhere.at.all:Rule", "cannot be loaded"),
        ("periodic(period=[)", "give a whole number"),
        ("linear(weights=[)", "cannot be read"),
        ("periodic(period=1.5)", "give a whole number"),
        ("periodic(period=3, period=4)", "each once"),
        ("history(beta=nan)", "beta=nan: give a finite number"),
        ("history(beta=.nan)", "beta=nan: not a number"),
        ("history(at_least=3)", "give true or false"),
        ("periodic(days=3)", "Its options: period, alpha"),
        ("traceretain(most_steps=0)", "at least 1"),
        ("traceretain(weights=WEIGHTS)", "are no numbers"),
        ("linear(weights=WEIGHTS)", "not all of them are finite"),
        ("memobank(sample=-1)", "at least 1"),
    ],
)
def test_what_is_no_rule_or_no_option(name: str, message: str, tmp_path: Path) -> None:
    weights = tmp_path / "weights.json"
    bad = (
        {**dict.fromkeys(LINEAR, 1.0), "age": float("nan")}
        if "trace" in name
        else {"bias": float("nan")}
    )
    weights.write_text(json.dumps(bad))
    with pytest.raises(ConfigError, match=message):
        make_retention(name.replace("WEIGHTS", str(weights)))
    with pytest.raises(ConfigError, match="rules can ask for id, created"):
        Columns({}, memory()._state.index).column("age")


def test_a_rule_in_a_file_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed command's path does not hold the folder that it is called in."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    with pytest.raises(
        ConfigError, match=r"^my_own_rules:Mine cannot be loaded .*its file must lie in this folder"
    ):
        make_retention("my_own_rules:Mine")
    assert sys.path == before
    Path("my_own_rules.py").write_text("from atommem.rules.fifo import FirstInFirstOut as Mine\n")
    assert type(make_retention("my_own_rules:Mine")).__name__ == "FirstInFirstOut"
    assert sys.path == [*before, str(tmp_path)]


class Watch(Rule):
    """Compares the numbers that are kept up to date with those that are counted anew."""

    looked: list[int] = []  # noqa: RUF012

    def sweep(self, store: StoreState) -> Sequence[Eviction]:
        index: Any = store._index
        fresh = Columns(store.entries, index)
        for name in fresh.names:
            np.testing.assert_array_equal(store.column(name), fresh.column(name))
        np.testing.assert_array_equal(
            store.computed(when_used), [when_used(store.entries[i]) for i in store.ids.tolist()]
        )
        np.testing.assert_allclose(store.nearest(), fresh.neighbours.nearest(), atol=2e-5)
        if len(store.ids) > 1:
            cosines = store.vectors @ store.vectors.T
            np.testing.assert_allclose(
                store.mean_cosines(), (cosines.sum(axis=0) - 1) / (len(cosines) - 1), atol=2e-5
            )
            np.fill_diagonal(cosines, -1)
            np.testing.assert_allclose(store.nearest(), cosines.max(axis=0), atol=2e-5)
        self.looked.append(len(store.ids))
        return ()


@pytest.mark.parametrize("most_held", [2048, 5])
async def test_numbers_follow_the_store(most_held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the store becomes too large for all cosines to be held."""
    monkeypatch.setattr(neighbours, "_MOST_HELD", most_held)
    Watch.looked.clear()
    m = memory(retention=f"{HERE}:Watch", retrieve_k=3)
    rng = np.random.default_rng(0)
    words = ["ann", "bob", "sings", "hums", "well", "low"]
    for step in range(120):
        said = " ".join(rng.choice(words, 3))
        handle = int(rng.integers(1, 4))
        kinds = [
            Action(CREATE, said),
            Action(CREATE, said),
            Action(READ, said),
            Action(DELETE, handle=handle),
        ]
        chosen = [kinds[i] for i in rng.integers(0, 4, 2)]
        await m.apply([*chosen, Action(UPDATE, said[::-1], handle)], step)
        m.observe(float(rng.integers(2)), step)
        if step % 40 == 20:
            m = m.fork()
    assert max(Watch.looked) > 16
