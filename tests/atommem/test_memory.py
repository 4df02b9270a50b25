"""The memory: its semantics, its operation log, its vectors, and its rules."""

import json
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from atommem import plugins
from atommem.actions import CREATE, DELETE, READ, SCRATCHPAD, UPDATE, Action
from atommem.config import MemoryConfig
from atommem.embedding.embedder import HashingEmbedder, RandomEmbedder
from atommem.errors import OutageError
from atommem.files import load_beside
from atommem.memory import log as logs
from atommem.memory import rules
from atommem.memory.log import Entry, MemoryView, Operation, Outcome, Source, replay
from atommem.memory.memory import WorkingMemory
from atommem.memory.store import VectorStore
from papers.banks import mean_cosines, nearest
from tests.atommem.sessions import by_policy, memory, shown, state, texts
from tests.fakes import WordEmbedder, WordTokenizer


async def test_view_results_stay_until_query_or_entries_change():
    m = memory(retrieve_k=1)
    await m.apply([Action(CREATE, "ann old"), Action(READ, "ann")], 0)
    await m.apply([Action(SCRATCHPAD, "one"), Action(SCRATCHPAD, "two")], 1)
    assert (shown(m), m.view().scratchpad) == ([(1, "ann old")], "two")
    await m.apply([Action(CREATE, "ann")], 2)
    assert shown(m) == [(1, "ann")]
    await m.apply([Action(SCRATCHPAD, ""), Action(READ, "")], 3)
    assert m.view() == MemoryView(size=2)


async def test_update_and_delete_address_handles_as_shown():
    m = memory(retrieve_k=2)
    created = [Action(CREATE, text) for text in ("ann one", "bob two", "cid three")]
    await m.apply([*created, Action(READ, "bob")], 0)
    assert shown(m) == [(1, "bob two"), (2, "ann one")]
    # The read in the same completion must not shift the handles.
    actions = [Action(READ, "ann"), Action(UPDATE, "bob three", 1), Action(DELETE, handle=2)]
    not_shown = [Action(UPDATE, "gone", handle) for handle in (2, 0, 3, None)]
    operations = by_policy(await m.apply([*actions, *not_shown, Action(CREATE, "new")], 1))
    assert [(o.outcome, o.entry_id, o.before, o.after) for o in operations[1:3]] == [
        (Outcome.APPLIED, 2, "bob two", "bob three"),
        (Outcome.APPLIED, 1, "ann one", None),
    ]
    assert [o.outcome for o in operations[3:]] == [*[Outcome.UNKNOWN_HANDLE] * 4, Outcome.APPLIED]
    assert texts(m) == {2: "bob three", 3: "cid three", 4: "new"}


async def test_read_past_shows_what_entries_were():
    m = memory(read_past=True, retrieve_k=3)
    created = [Action(CREATE, "ann in rome"), Action(CREATE, "bob in oslo")]
    await m.apply([*created, Action(READ, "ann bob in oslo")], 0)
    assert shown(m) == [(1, "bob in oslo"), (2, "ann in rome")]
    await m.apply([Action(DELETE, handle=1), Action(UPDATE, "ann in bern", 2)], 1)
    past = [(item.text, item.entry_id < 0) for item in m.view().retrieved]
    assert past == [("bob in oslo", True), ("ann in bern", False), ("ann in rome", True)]
    assert m.view().size == 1
    (refused, *_) = await m.apply([Action(UPDATE, "bob in rome", 1)], 2)
    assert refused.outcome is Outcome.UNKNOWN_HANDLE
    for twin in (m.fork(), await memory(read_past=True, retrieve_k=3).restore(m.log)):
        await twin.apply([Action(READ, "rome")], 3)
        assert shown(twin)[0] == (1, "ann in rome")
        await twin.edit(1, None, 4)  # what the user deletes is gone
        assert shown(twin) == [(1, "bob in oslo")]
    plain = await memory(retrieve_k=3).restore(m.log)
    await plain.apply([Action(READ, "ann")], 3)
    assert shown(plain) == [(1, "ann in bern")]


async def test_create_in_full_store_is_rejected_until_delete():
    m = memory(capacity=1)
    actions = [Action(CREATE, "one"), Action(CREATE, "two"), Action(READ, "one")]
    operations = await m.apply(actions, 0)
    assert [o.outcome for o in operations[:2]] == [Outcome.APPLIED, Outcome.REJECTED]
    assert operations[1].reason == "retention:reject: the store is full"
    assert (m.view().size, m.view().capacity) == (1, 1)
    await m.apply([Action(DELETE, handle=1), Action(CREATE, "three")], 1)
    assert list(texts(m).values()) == ["three"]


async def test_apply_long_text_is_cut_with_marker():
    m = memory(scratchpad_tokens=3, query_tokens=3, entry_tokens=3)
    await m.apply([Action(CREATE, "ann"), Action(READ, "ann")], 0)
    actions = [Action(kind, "a b c d e", 1) for kind in (SCRATCHPAD, READ, UPDATE)]
    operations = by_policy(await m.apply(actions, 1))
    assert [(o.after, o.reason) for o in operations] == [("a b [cut]", "cut")] * 3
    assert {m.view().scratchpad, m.view().query, *texts(m).values()} == {"a b [cut]"}
    fits, *_ = await m.apply([Action(SCRATCHPAD, "a b c")], 2)
    assert (fits.after, fits.reason) == ("a b c", "")


class FailsOn(WordEmbedder):
    word = "never"

    async def embed(self, texts: Sequence[str], kind: str) -> Any:
        if any(self.word in text for text in texts):
            raise OutageError("gone")
        return await super().embed(texts, kind)


async def test_apply_outage_leaves_memory_unchanged():
    embedder = FailsOn()
    m = memory(embedder)
    created = [Action(CREATE, "ann sings now"), Action(CREATE, "bobby flies")]
    await m.apply([*created, Action(READ, "bobby")], 0)
    changes = [Action(DELETE, handle=1), Action(UPDATE, "ann sings then", 2), Action(READ, "carol")]
    before = state(m)
    for embedder.word in ("then", "carol"):
        with pytest.raises(OutageError):
            await m.apply(changes, 1)
        assert state(m) == before
    embedder.word = "never"
    await m.apply(changes, 1)
    assert shown(m) == [(1, "ann sings then")]


async def test_undo_restores_step_and_embeds_deleted_texts_only():
    embedder = WordEmbedder()
    m = memory(embedder)
    await m.apply([Action(CREATE, "ann"), Action(CREATE, "bob"), Action(READ, "ann")], 0)
    first = state(m)
    await m.apply([Action(UPDATE, "eve", 2), Action(CREATE, "dan")], 1)
    embedder.calls.clear()
    await m.undo(1)
    assert embedder.calls == [("entry", "bob")]
    assert state(m) == first


BAD, GOOD = "https://bad.test/", "https://good.test/"


async def test_forget_removes_what_came_from_a_source():
    m = memory()
    await m.apply([Action(CREATE, "ann lives here"), Action(READ, "ann")], 0, Source(0, GOOD))
    bad = [Action(CREATE, "bob flies"), Action(UPDATE, "ann moved", 1), Action(SCRATCHPAD, "bad")]
    await m.apply(bad, 1, Source(1, f"{BAD}, part 2/3"))
    good = [Action(UPDATE, "ann lives", 1), Action(CREATE, "cid"), Action(SCRATCHPAD, "both")]
    await m.apply(good, 2, Source(2, GOOD))
    before = state(m)
    assert await m.forget("https://bad.test", 2) == ()
    assert state(m) == before
    await m.forget(BAD, 2)
    # Entry 1 and the scratchpad were rewritten since, by a policy that had read the source.
    assert (texts(m), m.view().scratchpad, m.view().query) == ({3: "cid"}, "", "ann")
    assert not m.contents.past
    await m.apply([Action(DELETE, handle=1)], 3)
    (operation, _) = await m.forget(GOOD, 3)  # what the policy deleted goes as well
    assert (operation.before, replay(m.log).past) == ("cid", {})


def test_replay_of_written_operations_returns_contents_with_statistics():
    rows = load_beside(__file__, "log.yaml")
    log = [logs.operation_from_json(row) for row in rows]
    assert json.loads(json.dumps(list(map(logs.to_json, log)))) == rows
    counts = {"mean_similarity": 0.5 - 0.25 / 3, "uses": 2, "mean_outcome": 0.75}
    span = Source(0, "https://example.org", 3, 9)
    two = Entry(2, "two", 0, 0, 3, 3, 0.25, 0.5, span, 1.0, **counts)
    three = Entry(3, "trois", 2, 2, source=Source(2), score=0.5, details={"steps": 3})
    expected = logs.Contents({2: two, 3: three}, "plan", "query", ((2, 0.25),), 3, len(log))
    found = replay(log)
    assert [entry.text for entry in found.past.values()] == ["one", "uno", "three"]
    assert replace(found, past={}) == expected


def exact(rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """16 of 64 numbers are 1/4 or -1/4: norm 1, with ties at every rank."""
    vector = np.zeros(64)
    vector[rng.choice(64, 16, replace=False)] = rng.choice([-0.25, 0.25], 16)
    return vector


def test_store_equals_dictionary_after_random_changes():
    rng, vectors, store = random.Random(1), np.random.default_rng(0), VectorStore(64)
    expected: dict[int, npt.NDArray[np.float64]] = {}
    for newest in range(600):
        action = rng.choices(("put", "search", "replace", "remove", "copy"), (10, 6, 3, 6, 1))[0]
        known = list(expected)
        if action == "put" or (action == "replace" and known):
            entry_id = newest if action == "put" else rng.choice(known)
            expected[entry_id] = exact(vectors)
            store.update({entry_id: expected[entry_id].astype(np.float32)})
        elif action == "remove" and known:
            entry_id = rng.choice(known)
            store.update({entry_id: None})
            del expected[entry_id]
        elif action == "copy":  # a change of one does not change the other
            left, store = rng.sample((store, store.copy()), 2)
            left.update(dict.fromkeys(known[:3]))
        elif action == "search":
            query = exact(vectors)
            scores = {key: round(float(vector @ query), 12) for key, vector in expected.items()}
            order = sorted(scores, key=lambda key: (-scores[key], key))
            k = rng.choice((1, 6, 20, 1000))
            found = store.search(query.astype(np.float32), k)
            assert [entry_id for entry_id, _ in found] == order[:k]
        assert len(store) == len(expected)
    np.testing.assert_array_equal(store.rows(list(expected)), list(expected.values()))


async def test_turn_takes_five_milliseconds_of_a_core_at_a_thousand_entries():
    m = memory(RandomEmbedder(384), capacity=1000, retention="lru")
    await m.apply([Action(CREATE, f"entry {number}") for number in range(1000)], 0)
    await m.apply([Action(READ, "entry")], 0)
    seconds = []
    for step in range(1, 41):
        changes = [Action(UPDATE, f"text {step}", 1), Action(DELETE, handle=2)]
        changes += [Action(CREATE, f"new {step}"), Action(READ, f"query {step}")]
        started = time.process_time()
        await m.apply(changes, step)
        m.fork()
        seconds.append(time.process_time() - started)
    assert median(seconds) <= 0.005


# Rules ---


HERE = __name__


class Nearest(rules.Rule):
    def evict(self, candidate: rules.Candidate, store: rules.StoreState) -> rules.Eviction:
        assert (store.step, store.capacity) == (1, 2)
        ((entry, score),) = store.search(candidate.vector, 1)
        return rules.Eviction(entry.id, f"like {candidate.text}", score)


async def test_evict_is_logged_before_the_create():
    name = f"{HERE}:Nearest"
    m = memory(capacity=2, retention=name)
    await m.apply([Action(CREATE, "ann sings"), Action(CREATE, "bob hums"), Action(READ, "ann")], 0)
    changes = [Action(CREATE, "ann sings well"), Action(UPDATE, "ann hums", 1)]
    delete, create, update, _ = await m.apply(changes, 1)
    assert texts(m) == {2: "bob hums", 3: "ann sings well"}
    assert (delete.kind, delete.entry_id, delete.before) == ("delete", 1, "ann sings")
    assert (delete.actor, delete.reason) == (f"retention:{name}", "like ann sings well")
    assert (create.actor, create.entry_id) == ("policy", 3)
    assert update.outcome is Outcome.UNKNOWN_HANDLE  # its entry has just been evicted


class Careful(rules.Rule):
    def admit(self, candidate: rules.Candidate, store: rules.StoreState) -> rules.Admission:
        if len(candidate.text) < 4:
            return rules.Refused("too short", len(candidate.text))
        for entry, score in store.search(candidate.vector, 1):
            return rules.Merged(entry.id, "near", score)
        return rules.Accepted()


async def test_admission_merge_is_logged_as_update():
    embedder, actor = WordEmbedder(), f"admission:{HERE}:Careful"
    m = memory(embedder, admission=f"{HERE}:Careful", capacity=1)
    new = "also ann sings now"
    (refused,) = await m.apply([Action(CREATE, "abc")], 0)
    assert (refused.outcome, refused.after, refused.actor) == (Outcome.REJECTED, "abc", "policy")
    assert (refused.reason, refused.score) == (f"{actor}: too short", 3)
    await m.apply([Action(CREATE, "ann sings now"), Action(READ, "ann sings now")], 0)
    create, update, _ = await m.apply([Action(CREATE, new)], 1)
    assert (create.outcome, create.entry_id, create.after) == (Outcome.MERGED, 1, new)
    assert (update.kind, update.entry_id, update.before) == ("update", 1, "ann sings now")
    assert (update.after, update.actor) == (new, actor)
    assert texts(m) == {1: new}
    rows = await embedder.embed([new], "entry")  # the store finds it by its new text
    np.testing.assert_allclose(m.vectors().rows[:1], rows, atol=1e-6)


async def test_store_state_cosines_equal_products():
    rows = await WordEmbedder().embed(["ann sings", "bob", "ann sings low", "ann"], "entry")
    entries = {3 + i: Entry(3 + i, "text", i, i) for i in range(3)}
    held = VectorStore(64)
    held.add([5, 3], rows[[2, 0]])
    changes = {4: rows[1], 9: None}  # 4 is new, and 9 was deleted
    seen = rules.StoreState(entries, held, 9, None, (0, 1), changes)
    np.testing.assert_array_equal(seen.vectors, rows[:3])
    cosines = rows[:3] @ rows[:3].T
    np.testing.assert_allclose(mean_cosines(seen), (cosines.sum(axis=0) - 1) / 2, atol=2e-5)
    np.fill_diagonal(cosines, -1)
    np.testing.assert_allclose(nearest(seen), cosines.max(axis=0), atol=2e-5)
    assert [entry.id for entry, _ in seen.search(rows[3], 2)] == [3, 5]


async def random_log(config: MemoryConfig, restored_at: int | None = None) -> list[Operation]:
    """Return the log of random actions; scores are rounded, as they depend on batches."""
    rng = random.Random(1)
    parts: Any = HashingEmbedder(32), WordTokenizer(), config
    m = WorkingMemory(*parts, seed=1)
    for step in range(40):
        if step == restored_at:
            restored = await WorkingMemory(*parts, seed=1).restore(m.log)
            m = restored.fork()
        kinds = rng.choices((CREATE, READ, UPDATE, DELETE, SCRATCHPAD), (6, 2, 1, 1, 1), k=2)
        text = " ".join(rng.choices(["ann", "bob likes", "moved to brent", "will sing"], k=3))
        await m.apply([Action(kind, text, rng.randint(1, 4)) for kind in kinds], step)
        assert len(m.entries()) <= 5
        assert replay(m.log) == m.contents
        if step % 3 == 2:
            scores = tuple((entry_id, float(step % 2)) for entry_id, _ in m.contents.shown)
            m.append(Operation(step, "observe", scores=scores))
    return [replace(o, score=round(o.score or 0, 4), scores=()) for o in m.log]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["retention", "admission"])
async def test_shipped_rules_repeat_their_log_also_after_a_restore(kind):
    for name in plugins.names(f"atommem.{kind}"):
        config = MemoryConfig(**{"capacity": 5, "retention": "fifo", kind: name})  # type: ignore[arg-type]
        log = await random_log(config)
        assert await random_log(config) == log, name
        assert await random_log(config, restored_at=20) == log, name
