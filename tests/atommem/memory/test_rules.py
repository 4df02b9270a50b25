"""What rules see and may do, and what the memory makes of their decisions."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from atommem.actions import Action
from atommem.config import MemoryConfig
from atommem.errors import ConfigError, OutageError
from atommem.memory.log import Entry, Outcome, Source, operation_from_json, replay, to_json
from atommem.memory.memory import WorkingMemory
from atommem.memory.rules import (
    Accepted,
    Admission,
    Candidate,
    Eviction,
    Merged,
    Refused,
    Rule,
    StoreState,
    make_rule,
)
from atommem.memory.store import VectorStore
from tests.atommem.memory.toys import (
    CREATE,
    DELETE,
    READ,
    UPDATE,
    by_policy,
    memory,
    shown,
    state,
    texts,
)
from tests.fakes import WordEmbedder, WordTokenizer

HERE = __name__


class Nearest(Rule):
    """Evicts what the new entry is nearest to."""

    seen: ClassVar[list[tuple[Candidate, StoreState]]] = []

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        self.seen.append((candidate, store))
        cosines = store.vectors @ candidate.vector
        ((entry, score),) = store.search(candidate.vector, 1)
        assert store.ids[int(cosines.argmax())] == entry.id
        assert score == pytest.approx(float(cosines.max()), abs=1e-5)
        return Eviction(entry.id, f"like {candidate.text}", score)


async def test_evict_is_logged_before_the_create() -> None:
    Nearest.seen.clear()
    name = f"{HERE}:Nearest"
    m = memory(capacity=2, retention=name)
    await m.apply([Action(CREATE, "ann sings"), Action(CREATE, "bob hums"), Action(READ, "ann")], 0)
    turn = [Action(CREATE, "ann sings well"), Action(UPDATE, "ann hums", 1)]
    delete, create, update, retrieve = await m.apply(turn, 1, Source(1, "chunk 2"))
    assert texts(m) == {2: "bob hums", 3: "ann sings well"}
    assert (delete.kind, delete.entry_id, delete.before) == ("delete", 1, "ann sings")
    assert (delete.actor, delete.reason) == (f"retention:{name}", "like ann sings well")
    assert delete.score == pytest.approx(0.816, abs=0.01)
    assert (create.actor, create.entry_id, retrieve.kind) == ("policy", 3, "retrieve")
    assert update.outcome is Outcome.UNKNOWN_HANDLE  # its entry has just been evicted
    ((candidate, seen),) = Nearest.seen
    assert (candidate.text, candidate.source) == ("ann sings well", Source(1, "chunk 2"))
    assert (seen.step, seen.capacity) == (1, 2)
    with pytest.raises(TypeError):
        seen.entries[1] = seen.entries[2]  # type: ignore[index]


async def test_restore_with_smaller_capacity_evicts_at_next_create() -> None:
    m = memory()
    await m.apply([Action(CREATE, text) for text in ("one", "two", "three")], 0)
    config = MemoryConfig(capacity=2, retention="fifo")
    m = await WorkingMemory(WordEmbedder(), WordTokenizer(), config).restore(m.snapshot())
    operations = await m.apply([Action(CREATE, "four")], 1)
    assert [operation.outcome for operation in by_policy(operations)] == [Outcome.APPLIED]
    assert list(texts(m).values()) == ["three", "four"]


class Broken(Rule):
    """Scores with numpy, and names an entry that does not exist."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        nearest = (store.vectors @ candidate.vector).max()
        return Eviction(None, "too near", nearest) if nearest > 0.9 else Eviction(99, "none")


async def test_evict_of_missing_entry_is_refused() -> None:
    m = memory(capacity=1, retention=f"{HERE}:Broken")
    (*_, refused) = await m.apply([Action(CREATE, "one"), Action(CREATE, "one")], 0)
    assert operation_from_json(json.loads(json.dumps(to_json(refused)))) == refused
    before = state(m)
    with pytest.raises(ConfigError, match="entry 99, which does not exist"):
        await m.apply([Action(READ, "one"), Action(CREATE, "two")], 1)
    assert state(m) == before


class Careful(Rule):
    """Refuses short texts and merges near ones, some with a text of its own."""

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
    ("new", "after", "limit"),
    [
        ("ann sings", "ann sings", 9),
        ("also ann sings now", "ann sings now; [cut]", 4),
    ],
)
async def test_admission_merge_is_logged_as_update(new: str, after: str, limit: int) -> None:
    embedder = WordEmbedder()
    m = memory(embedder, admission=CAREFUL, capacity=1, entry_tokens=limit)
    (refused,) = await m.apply([Action(CREATE, "abc")], 0)
    assert (refused.outcome, refused.after, refused.actor) == (Outcome.REJECTED, "abc", "policy")
    assert (refused.reason, refused.score) == (f"admission:{CAREFUL}: too short", 3)
    await m.apply([Action(CREATE, "ann sings now"), Action(READ, "ann sings now")], 0)
    create, update, _ = await m.apply([Action(CREATE, new)], 1)
    assert (create.kind, create.outcome, create.entry_id, create.after) == (
        *("create", Outcome.MERGED, 1, new),
    )
    assert (create.actor, create.reason) == ("policy", f"admission:{CAREFUL}: near duplicate")
    assert (update.kind, update.entry_id, update.before) == ("update", 1, "ann sings now")
    assert (update.after, update.actor, update.reason) == (
        *(after, f"admission:{CAREFUL}", "near duplicate"),
    )
    assert update.score is not None
    assert update.score > 0.7
    assert texts(m) == {1: after}
    assert replay(m.log) == m.contents
    rows = await embedder.embed([after], "entry")  # the store finds it by its new text
    np.testing.assert_allclose(m.vectors().rows[:1], rows, atol=1e-6)


async def test_admission_merge_outage_changes_nothing() -> None:
    class MergeFails(WordEmbedder):
        async def embed(self, texts: Sequence[str], kind: str) -> Any:
            if any(";" in text for text in texts):
                raise OutageError("gone")
            return await super().embed(texts, kind)

    m = memory(MergeFails(), admission=CAREFUL)
    turn = [Action(CREATE, "ann sings now"), Action(CREATE, "bobby flies"), Action(READ, "bobby")]
    await m.apply(turn, 0)
    before = state(m)
    turn = [
        Action(DELETE, handle=1),
        Action(UPDATE, "ann sings then", 2),
        Action(CREATE, "carol writes"),
        Action(READ, "carol"),
        Action(CREATE, "ann also sings then"),
    ]
    with pytest.raises(OutageError):
        await m.apply(turn, 1)
    assert state(m) == before
    await m.apply([Action(CREATE, "carol writes"), Action(READ, "carol")], 1)
    assert shown(m)[0] == (1, "carol writes")
    assert list(texts(m)) == [1, 2, 3]


class Tidy(Rule):
    """Deletes entries after some steps, and those that were observed to fail."""

    def __init__(self, steps: int = 2) -> None:
        self.steps, self.failed = steps, set[int]()

    def sweep(self, store: StoreState) -> Sequence[Eviction]:
        old = store.ids[store.column("created") <= store.step - self.steps].tolist()
        failed = sorted(self.failed & set(store.entries) - set(old))
        return [*(Eviction(i, "old", 1) for i in old), *(Eviction(i, "failed") for i in failed)]

    def observe(self, shown: Sequence[int], outcome: float, step: int) -> None:
        if outcome == 0:
            self.failed |= set(shown)


async def test_sweep_is_logged_after_the_actions() -> None:
    name = f"{HERE}:Tidy(steps=1)"
    m = memory(retention=name)
    await m.apply([Action(CREATE, "one"), Action(CREATE, "two")], 0)
    create, *deletes = await m.apply([Action(CREATE, "three")], 1)
    assert [(o.kind, o.entry_id, o.actor, o.reason, o.score) for o in deletes] == [
        ("delete", 1, f"retention:{name}", "old", 1.0),
        ("delete", 2, f"retention:{name}", "old", 1.0),
    ]
    assert (create.entry_id, texts(m)) == (3, {3: "three"})


async def test_rule_of_forked_or_restored_memory_has_observed_the_log() -> None:
    embedder = WordEmbedder()
    m = memory(embedder, retention=f"{HERE}:Tidy(steps=99)")
    turn = [Action(CREATE, "ann sings"), Action(CREATE, "bob hums"), Action(READ, "ann sings")]
    await m.apply(turn, 0)
    m.log_outcome("observe", 0.0, 0, [1])
    m.log_outcome("observe", 1.0, 0, [1, 2])
    assert [(e.uses, e.mean_outcome) for e in m.entries()] == [(2, 0.5), (1, 1.0)]
    restored = await memory(embedder, retention=f"{HERE}:Tidy(steps=99)").restore(m.start, m.log)
    for one in (m.fork(), restored):
        await one.apply([], 1)
        assert texts(one) == {2: "bob hums"}
    # An undo that fails leaves the rule as it was.
    await m.edit(2, None, 1)
    embedder.fail = OutageError("away")
    with pytest.raises(OutageError):
        await m.undo(1)
    embedder.fail = None
    await m.apply([], 2)
    assert texts(m) == {}


class Words(Rule):
    def rate(self, candidate: Candidate, store: StoreState) -> float:
        return len(candidate.text.split())

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        raise AssertionError("the store is never full")


class Asks(Rule):
    """Asks for a rating before the actions of a completion are applied."""

    def __init__(self) -> None:
        self.known: dict[str, float] = {}

    async def prepare(self, texts: Sequence[str]) -> None:
        self.known |= {text: float(len(text)) for text in texts}

    def admit(self, candidate: Candidate, store: StoreState) -> Admission:
        return Accepted("long enough", self.known[candidate.text])


async def test_rate_is_logged_and_follows_the_text() -> None:
    m = memory(retention=f"{HERE}:Words")
    (create,) = await m.apply([Action(CREATE, "ann sings well")], 0)
    assert (create.score, m.entries()[0].score) == (3, 3)
    await m.apply([Action(READ, "ann")], 1)
    await m.apply([Action(UPDATE, "ann sings", 1)], 2)
    assert m.entries()[0].score == 2
    m = memory(admission=f"{HERE}:Asks")
    (create,) = await m.apply([Action(CREATE, "ann")], 0)
    assert (create.reason, create.score) == (f"admission:{HERE}:Asks: long enough", 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lrv", r"retention=lrv: unknown \(did you mean lru\?\)"),
        (f"{HERE}:Asks", "must define evict or sweep"),
        ("fifo(size=3)", r"--size=3: unknown setting\. Options: none"),
        ("periodic(period=1.5)", "give a whole number"),
        ("history(at_least=3)", "give true or false"),
    ],
)
def test_make_rule_invalid_name_or_option_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_rule("retention", name)


def test_make_rule_imports_from_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of an installed command does not include the folder in which it is called."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        make_rule("retention", "my_own_rules:Mine")
    text = "from atommem.rules.eviction import FirstInFirstOut as Mine\n"
    (tmp_path / "my_own_rules.py").write_text(text)
    assert type(make_rule("retention", "my_own_rules:Mine")).__name__ == "FirstInFirstOut"


async def test_store_state_returns_columns_and_cosines_by_age() -> None:
    rows = await WordEmbedder().embed(["ann sings", "bob", "ann sings low", "ann"], "entry")
    entries = {3 + i: Entry(3 + i, "text", i, i, last_shown=None if i else 5) for i in range(3)}
    store = VectorStore(64)
    store.add([5, 3], rows[[2, 0]])
    changes = {4: rows[1], 9: None}  # 4 is new, and 9 was deleted
    seen = StoreState(entries, store, 9, None, (0, 1), changes)
    assert seen.ids.tolist() == [3, 4, 5]
    np.testing.assert_array_equal(seen.vectors, rows[:3])
    np.testing.assert_array_equal(seen.column("last_shown"), [5, np.nan, np.nan])
    cosines = rows[:3] @ rows[:3].T
    np.testing.assert_allclose(seen.mean_cosines(), (cosines.sum(axis=0) - 1) / 2, atol=2e-5)
    np.fill_diagonal(cosines, -1)
    np.testing.assert_allclose(seen.nearest(), cosines.max(axis=0), atol=2e-5)
    np.testing.assert_allclose(seen.cosines(rows[3]), rows[:3] @ rows[3], atol=2e-5)
    assert [entry.id for entry, _ in seen.search(rows[3], 2)] == [3, 5]
    assert seen.rng.random() == StoreState(entries, store, 9, None, (0, 1)).rng.random()
    with pytest.raises(ConfigError, match="entries have id, created"):
        seen.column("age")
    empty = StoreState({}, store, 0, None, (0,))
    assert (empty.nearest().shape, empty.mean_cosines().shape) == ((0,), (0,))
