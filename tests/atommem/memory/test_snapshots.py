"""One mechanism: snapshot, restore, fork, undo, the memory as it was, and taking out what a page has left in it."""

from __future__ import annotations

import pytest

from atommem.actions import Action
from atommem.errors import OutageError
from atommem.memory.contents import replay
from atommem.memory.entries import Source
from atommem.memory.working import WorkingMemory
from tests.atommem.memory.toys import CREATE, READ, SCRATCHPAD, UPDATE, memory, shown, texts


async def test_undo_embeds_only_what_was_lost() -> None:
    m = memory()
    await m.apply([Action(CREATE, "ann"), Action(CREATE, "bob"), Action(READ, "ann")], 0)
    await m.apply([Action(UPDATE, "eve", 2), Action(CREATE, "dan"), Action(READ, "dan")], 1)
    embedder = m._resources.embedder
    before, embedder.fail = (m.contents.copy(), m.log), OutageError("gone")  # type: ignore[attr-defined]
    with pytest.raises(OutageError):
        await m.undo(1)
    assert (m.contents, m.log) == before
    embedder.fail = None  # type: ignore[attr-defined]
    embedder.calls.clear()  # type: ignore[attr-defined]
    await m.undo(1)
    assert embedder.calls == [("entry", "bob")]  # type: ignore[attr-defined]
    assert (texts(m), shown(m), m.contents.newest_id) == ({1: "ann", 2: "bob"}, [(1, "ann"), (2, "bob")], 2)
    # The query's own vector is made again when something is searched for.
    await m.apply([Action(CREATE, "ann too")], 1)
    assert embedder.calls[1:] == [("entry", "ann too"), ("query", "ann")]  # type: ignore[attr-defined]
    assert [text for _, text in shown(m)] == ["ann", "ann too", "bob"]


BAD, GOOD = "https://bad.test/", "https://good.test/"


async def filled() -> WorkingMemory:
    m = memory()
    await m.apply([Action(CREATE, "ann lives here"), Action(READ, "ann")], 0, Source(0, GOOD))
    await m.apply([Action(CREATE, "bob flies"), Action(UPDATE, "ann moved", 1)], 1, Source(1, f"{BAD}, part 2/3"))
    await m.apply([Action(UPDATE, "ann lives", 1), Action(CREATE, "cid sings")], 2, Source(2, GOOD))
    return m


async def test_entries_with_any_text_from_there_go_and_others_stay() -> None:
    m = await filled()
    held = texts(m)
    for nowhere in ("https://bad.test", "https://bad.test/, part 1/3", "https://other.test/", ""):
        assert await m.forget(nowhere, 2) == ()
    assert texts(m) == held
    operations = await m.forget(BAD, 2)
    assert [(o.kind, o.entry_id, o.actor, o.reason) for o in operations[:-1]] == [
        ("delete", 1, "user", f"forget {BAD}"),
        ("delete", 2, "user", f"forget {BAD}"),
    ], "the first was rewritten since, by who had read it"
    assert texts(m) == {3: "cid sings"}
    assert shown(m) == [(1, "cid sings")]
    assert m.log[-len(operations) :] == operations
    assert await m.forget(BAD, 2) == ()
    # The log still holds it all.
    assert replay(m.log) == m.contents
    await m.undo(2)
    await m.apply([Action(UPDATE, "ann lives", 1), Action(CREATE, "cid sings")], 2, Source(2, GOOD))
    assert texts(m) == held


async def test_scratchpad_and_query_are_emptied_if_any_of_their_texts_is_from_there() -> None:
    m = memory()
    await m.apply([Action(SCRATCHPAD, "bad"), Action(READ, "bad"), Action(CREATE, "x")], 0, Source(0, BAD))
    await m.apply([Action(SCRATCHPAD, "bad and good")], 1, Source(1, GOOD))
    await m.forget(BAD, 1)
    assert (m.view().scratchpad, m.view().query, m.view().retrieved) == ("", None, ())
    await m.apply([Action(SCRATCHPAD, "good"), Action(READ, "good")], 2, Source(2, GOOD))
    assert await m.forget(BAD, 2) == ()
    assert m.view().scratchpad == "good"
