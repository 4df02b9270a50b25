from __future__ import annotations

import numpy as np
import pytest

from atommem.actions import Action
from atommem.errors import ConfigError, OutageError
from atommem.memory.log import MemoryView, Outcome, Source, replay
from atommem.memory.memory import WorkingMemory
from tests.atommem.sessions import (
    CREATE,
    DELETE,
    READ,
    SCRATCHPAD,
    UPDATE,
    FailsOn,
    by_policy,
    memory,
    shown,
    state,
    texts,
)
from tests.fakes import WordEmbedder


async def test_read_shows_results_in_next_view_and_changes_no_entry() -> None:
    m = memory()
    await m.apply([Action(CREATE, "ann lives here"), Action(CREATE, "bob flies")], 0)
    assert shown(m) == []
    before = texts(m)
    operation, retrieval = await m.apply([Action(READ, "ann")], 1)
    assert (operation.kind, operation.before, operation.after) == ("read", None, "ann")
    assert [(item.entry_id, item.score) for item in m.view().retrieved] == list(retrieval.scores)
    assert shown(m)[0] == (1, "ann lives here")
    assert (texts(m), m.view().query) == (before, "ann")


async def test_view_results_stay_until_query_or_entries_change() -> None:
    m = memory(retrieve_k=1)
    await m.apply([Action(CREATE, "ann old"), Action(READ, "ann")], 0)
    await m.apply([Action(SCRATCHPAD, "one"), Action(SCRATCHPAD, "two")], 1)
    assert (shown(m), m.view().scratchpad) == ([(1, "ann old")], "two")
    await m.apply([Action(CREATE, "ann")], 2)
    assert shown(m) == [(1, "ann")]
    await m.apply([Action(CREATE, "bob"), Action(READ, "bob")], 3)
    assert shown(m) == [(1, "bob")]
    await m.apply([Action(SCRATCHPAD, ""), Action(READ, "")], 4)
    assert m.view() == MemoryView(size=3)


async def test_update_and_delete_address_handles_as_shown() -> None:
    m = memory(retrieve_k=2)
    created = [Action(CREATE, text) for text in ("ann one", "bob two", "cid three")]
    await m.apply([*created, Action(READ, "bob")], 0)
    assert shown(m) == [(1, "bob two"), (2, "ann one")]
    # The read in the same completion must not shift the handles.
    turn = [Action(READ, "ann"), Action(UPDATE, "bob three", 1), Action(DELETE, handle=2)]
    not_shown = [Action(UPDATE, "gone", handle) for handle in (2, 0, 3, None)]
    operations = by_policy(await m.apply([*turn, *not_shown, Action(CREATE, "new")], 1))
    assert [(o.outcome, o.entry_id, o.before, o.after) for o in operations[1:3]] == [
        (Outcome.APPLIED, 2, "bob two", "bob three"),
        (Outcome.APPLIED, 1, "ann one", None),
    ]
    assert [o.outcome for o in operations[3:]] == [*[Outcome.UNKNOWN_HANDLE] * 4, Outcome.APPLIED]
    assert texts(m) == {2: "bob three", 3: "cid three", 4: "new"}


async def test_create_in_full_store_is_rejected_until_delete() -> None:
    m = memory(capacity=1)
    turn = [Action(CREATE, "one"), Action(CREATE, "two"), Action(READ, "one")]
    operations = await m.apply(turn, 0)
    assert [o.outcome for o in operations[:2]] == [Outcome.APPLIED, Outcome.REJECTED]
    assert operations[1].reason == "retention:reject: the store is full"
    assert (m.view().size, m.view().capacity) == (1, 1)
    await m.apply([Action(DELETE, handle=1), Action(CREATE, "three")], 1)
    assert list(texts(m).values()) == ["three"]


@pytest.mark.parametrize(
    ("kind", "setting"),
    [(SCRATCHPAD, "scratchpad_tokens"), (READ, "query_tokens"), (UPDATE, "entry_tokens")],
)
async def test_apply_long_text_is_cut_with_marker(kind: str, setting: str) -> None:
    m = memory(**{setting: 3})
    await m.apply([Action(CREATE, "ann"), Action(READ, "ann")], 0)
    operation, *_ = await m.apply([Action(kind, "a b c d e", 1)], 1)
    assert (operation.after, operation.reason) == ("a b [cut]", "cut")
    assert "a b [cut]" in (m.view().scratchpad, m.view().query, *texts(m).values())
    fits, *_ = await m.apply([Action(kind, "a b c", 1)], 2)
    assert (fits.after, fits.reason) == ("a b c", "")


async def test_apply_disabled_action_is_logged_and_changes_nothing() -> None:
    m = memory(disabled_actions=[SCRATCHPAD, UPDATE])
    await m.apply([Action(CREATE, "ann"), Action(READ, "ann")], 0)
    before = m.view()
    turn = [Action(SCRATCHPAD, "x"), Action(UPDATE, "x", 1)]
    operations = by_policy(await m.apply(turn, 1))
    assert [operation.outcome for operation in operations] == [Outcome.DISABLED] * 2
    assert m.view() == before


async def two_entries(embedder: WordEmbedder) -> WorkingMemory:
    m = memory(embedder)
    turn = [Action(CREATE, "ann sings now"), Action(CREATE, "bobby flies"), Action(READ, "bobby")]
    await m.apply(turn, 0)
    return m


async def test_apply_outage_leaves_memory_unchanged() -> None:
    embedder = FailsOn()
    m = await two_entries(embedder)
    turn = [Action(DELETE, handle=1), Action(UPDATE, "ann sings then", 2), Action(READ, "carol")]
    before = state(m)
    for embedder.word in ("then", "carol"):
        with pytest.raises(OutageError):
            await m.apply(turn, 1)
        assert state(m) == before
    embedder.word = "never"
    await m.apply(turn, 1)
    assert shown(m) == [(1, "ann sings then")]


async def test_undo_restores_step_and_embeds_deleted_texts_only() -> None:
    embedder = WordEmbedder()
    m = memory(embedder)
    await m.apply([Action(CREATE, "ann"), Action(CREATE, "bob"), Action(READ, "ann")], 0)
    first = state(m)
    await m.apply([Action(UPDATE, "eve", 2), Action(CREATE, "dan")], 1)
    embedder.calls.clear()
    await m.undo(1)
    assert embedder.calls == [("entry", "bob")]
    assert state(m) == first


async def test_restore_from_snapshot_and_log_continues_identically() -> None:
    embedder = WordEmbedder()
    m = await two_entries(embedder)
    middle = m.snapshot()
    for step in range(1, 4):
        await m.apply([Action(UPDATE, f"step {step}", 1), Action(CREATE, f"new {step}")], step)

    whole = await memory(embedder).restore(m.start, m.log)
    assert state(whole)[:3] == state(m)[:3]
    embedder.calls.clear()
    cached = await memory(embedder).restore(middle, m.log[4:], m.vectors())
    assert (cached.contents, embedder.calls) == (m.contents, [])
    with pytest.raises(ConfigError, match="begins at step 1"):
        await cached.undo(0)
    for one in (m, whole, cached):
        await one.apply([Action(CREATE, "bobby too")], 4)
    assert shown(m) == shown(whole) == shown(cached)


async def test_edit_updates_or_deletes_entry_and_view() -> None:
    m = memory(entry_tokens=3)
    await m.apply([Action(CREATE, "ann"), Action(CREATE, "bob"), Action(READ, "bob")], 0)
    update, _ = await m.edit(1, "bob bob bob bob", 0)
    assert (update.actor, update.after) == ("user", "bob bob [cut]")
    await m.edit(2, None, 0)
    assert shown(m) == [(1, "bob bob [cut]")]
    with pytest.raises(ConfigError, match="entry 2 does not exist"):
        await m.edit(2, "x", 0)


BAD, GOOD = "https://bad.test/", "https://good.test/"


async def test_forget_deletes_entries_of_a_source() -> None:
    m = memory()
    await m.apply([Action(CREATE, "ann lives here"), Action(READ, "ann")], 0, Source(0, GOOD))
    turn = [Action(CREATE, "bob flies"), Action(UPDATE, "ann moved", 1)]
    await m.apply(turn, 1, Source(1, f"{BAD}, part 2/3"))
    await m.apply([Action(UPDATE, "ann lives", 1), Action(CREATE, "cid sings")], 2, Source(2, GOOD))
    before = state(m)
    assert await m.forget("https://bad.test", 2) == ()
    assert state(m) == before
    operations = await m.forget(BAD, 2)
    # Entry 1 was rewritten since, by a policy that had read the source.
    assert [(o.kind, o.entry_id, o.actor) for o in operations[:-1]] == [
        ("delete", 1, "user"),
        ("delete", 2, "user"),
    ]
    assert shown(m) == [(1, "cid sings")]


async def test_forget_clears_scratchpad_and_query_of_a_source() -> None:
    m = memory()
    turn = [Action(SCRATCHPAD, "bad"), Action(READ, "bad"), Action(CREATE, "x")]
    await m.apply(turn, 0, Source(0, BAD))
    await m.apply([Action(SCRATCHPAD, "bad and good")], 1, Source(1, GOOD))
    await m.forget(BAD, 1)
    assert m.view() == MemoryView()


async def test_replay_after_random_turns_equals_contents() -> None:
    rng = np.random.default_rng(0)
    kinds = [CREATE, CREATE, READ, DELETE, UPDATE, SCRATCHPAD]
    m = memory(capacity=6, retention="lru", retrieve_k=3)
    for step in range(60):
        text = " ".join(rng.choice(["ann", "bob", "sings", "hums"], 3))
        turn = [Action(kind, text, int(rng.integers(1, 4))) for kind in rng.choice(kinds, 3)]
        await m.apply(turn, step)
        assert replay(m.log) == m.contents
        assert len(m.entries()) <= 6
