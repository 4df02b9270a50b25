"""A memory used turn by turn: handles, views, limits, what is shown and what is logged."""

from __future__ import annotations

import pytest

from atommem.actions import Action
from atommem.errors import TraceError
from atommem.memory.entries import MemoryView, Source
from atommem.memory.operations import Outcome
from tests.atommem.memory.toys import CREATE, DELETE, READ, SCRATCHPAD, UPDATE, by_policy, memory, shown, texts


async def test_a_read_is_shown_in_the_next_view_and_changes_nothing() -> None:
    m = memory()
    await m.apply([Action(CREATE, "ann lives here"), Action(CREATE, "bob flies")], 0)
    assert shown(m) == []
    before = texts(m)
    operation, retrieval = await m.apply([Action(READ, "ann")], 1)
    assert (operation.kind, operation.before, operation.after) == ("read", None, "ann")
    assert (retrieval.kind, retrieval.actor, retrieval.before, retrieval.after) == ("retrieve", "memory", None, None)
    assert [(item.entry_id, item.score) for item in m.view().retrieved] == list(retrieval.scores)
    assert shown(m)[0] == (1, "ann lives here")
    assert texts(m) == before
    assert m.view().query == "ann"
    # One call of the embedder for all that a completion writes.
    assert m._resources.embedder.calls == [("entry", "ann lives here", "bob flies"), ("query", "ann")]  # type: ignore[attr-defined]


async def test_results_stay_until_query_or_entries_change() -> None:
    m = memory(retrieve_k=1)
    await m.apply([Action(CREATE, "ann old"), Action(READ, "ann")], 0)
    assert shown(m) == [(1, "ann old")]
    await m.apply([Action(SCRATCHPAD, "one"), Action(SCRATCHPAD, "two")], 1)
    assert (shown(m), m.view().scratchpad) == ([(1, "ann old")], "two")
    await m.apply([Action(CREATE, "ann")], 2)
    assert shown(m) == [(1, "ann")]
    await m.apply([Action(CREATE, "bob"), Action(READ, "bob")], 3)
    assert shown(m) == [(1, "bob")]
    # What is written empty is empty: a scratchpad, and no query.
    cleared, *_ = await m.apply([Action(SCRATCHPAD, ""), Action(READ, "")], 4)
    assert (cleared.before, cleared.after) == ("two", "")
    assert m.view() == MemoryView(size=3)
    assert MemoryView(query="") == MemoryView(query=None)


async def test_handles_are_those_of_the_view_that_the_model_saw() -> None:
    m = memory(retrieve_k=2)
    created = [Action(CREATE, text) for text in ("ann one", "bob two", "cid three")]
    await m.apply([*created, Action(READ, "bob")], 0)
    assert shown(m) == [(1, "bob two"), (2, "ann one")]
    # The read in the same completion must not shift the handles.
    turn = [Action(READ, "ann"), Action(UPDATE, "bob three", 1), Action(DELETE, handle=2), Action(DELETE, handle=2)]
    not_shown = [Action(UPDATE, "gone", handle) for handle in (0, 3, 99, None)]
    operations = by_policy(await m.apply([*turn, *not_shown, Action(CREATE, "new")], 1))
    assert [(o.outcome, o.entry_id, o.before, o.after) for o in operations[1:4]] == [
        (Outcome.APPLIED, 2, "bob two", "bob three"),
        (Outcome.APPLIED, 1, "ann one", None),
        (Outcome.UNKNOWN_HANDLE, None, None, None),
    ]
    assert [o.outcome for o in operations[4:]] == [*[Outcome.UNKNOWN_HANDLE] * 4, Outcome.APPLIED]
    assert texts(m) == {2: "bob three", 3: "cid three", 4: "new"}


async def test_capacity_reject_and_the_room_that_a_delete_makes() -> None:
    m = memory(capacity=1)
    operations = await m.apply([Action(CREATE, "one"), Action(CREATE, "two"), Action(READ, "one")], 0)
    assert [o.outcome for o in operations[:2]] == [Outcome.APPLIED, Outcome.REJECTED]
    assert (operations[1].actor, operations[1].reason) == ("policy", "retention:reject: the store is full")
    assert (m.view().size, m.view().capacity) == (1, 1)
    await m.apply([Action(DELETE, handle=1), Action(CREATE, "three")], 1)
    assert list(texts(m).values()) == ["three"]


@pytest.mark.parametrize(
    ("kind", "setting"),
    [(SCRATCHPAD, "scratchpad_tokens"), (READ, "query_tokens"), (CREATE, "entry_tokens"), (UPDATE, "entry_tokens")],
)
async def test_every_text_has_a_limit_and_is_cut_with_a_marker(kind: str, setting: str) -> None:
    m = memory(**{setting: 3})
    await m.apply([Action(CREATE, "ann"), Action(READ, "ann")], 0)
    operation, *_ = await m.apply([Action(kind, "a b c d e", 1)], 1)
    assert (operation.after, operation.reason) == ("a b [cut]", "cut")
    assert "a b [cut]" in (m.view().scratchpad, m.view().query, *texts(m).values())
    assert not any("d e" in text for call in m._resources.embedder.calls for text in call)  # type: ignore[attr-defined]
    fits, *_ = await m.apply([Action(kind, "a b c", 1)], 2)
    assert (fits.after, fits.reason) == ("a b c", "")


@pytest.mark.parametrize("kind", [CREATE, READ, UPDATE, DELETE, SCRATCHPAD])
async def test_a_disabled_action_does_nothing_and_is_recorded(kind: str) -> None:
    m = memory(disabled_actions=[str(kind)])
    await m.apply([Action(CREATE, "ann"), Action(READ, "ann"), Action(SCRATCHPAD, "pad")], 0)
    before = (texts(m), m.contents.scratchpad, m.contents.query)
    (operation,) = by_policy(await m.apply([Action(kind, "changed", 1)], 1))
    assert operation.outcome is Outcome.DISABLED
    assert (texts(m), m.contents.scratchpad, m.contents.query) == before


async def test_entries_know_when_and_how_well_they_were_shown() -> None:
    m = memory(retrieve_k=1)
    span = Source(0, "chunk 1", 5, 9)
    await m.apply([Action(CREATE, "ann"), Action(CREATE, "bob"), Action(READ, "ann bob ann")], 0, span)
    await m.apply([], 1)
    await m.apply([Action(READ, "ann")], 2)
    await m.apply([Action(UPDATE, "ann sings", 1)], 3)
    ann, bob = m.entries()
    first, _, second, third = (operation.scores[0][1] for operation in m.log if operation.kind == "retrieve")
    assert first < second > third
    assert (ann.created, ann.updated, ann.shown, ann.last_shown) == (0, 3, 4, 4)
    assert (ann.last_similarity, ann.best_similarity) == (third, second)
    assert (ann.source, bob.source) == (Source(3), span)
    assert (bob.shown, bob.last_shown, bob.last_similarity, bob.best_similarity) == (0, None, None, None)


async def test_the_outcome_of_the_writer_is_noted_until_another_writes() -> None:
    m = memory()
    await m.apply([Action(CREATE, "ann"), Action(CREATE, "bob"), Action(READ, "ann")], 0)
    m.record_outcome(0.5, 0, [2])
    operation = m.record_outcome(1.0, 0)
    assert operation.scores == ((1, 1.0),)
    assert [entry.outcome for entry in m.entries()] == [1.0, 0.5]
    await m.apply([Action(UPDATE, "ann sings", 1)], 1)
    assert [entry.outcome for entry in m.entries()] == [None, 0.5]
    before, log = m.entries(), m.log
    with pytest.raises(TraceError, match="there is no entry 99"):
        m.record_outcome(1.0, 1, [1, 99])
    assert (m.entries(), m.log) == (before, log)
