"""Rules: what they see and may do, what the memory makes of it, and the shipped ones."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from atommem import plugins
from atommem.actions import CREATE, DELETE, READ, SCRATCHPAD, UPDATE, Action
from atommem.config import MemoryConfig
from atommem.embedding.embedder import HashingEmbedder
from atommem.memory import rules
from atommem.memory.log import Entry, Operation, Outcome, replay
from atommem.memory.memory import WorkingMemory
from atommem.memory.store import VectorStore
from papers.banks import mean_cosines, nearest
from tests.atommem.sessions import memory, texts
from tests.fakes import WordEmbedder, WordTokenizer

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
