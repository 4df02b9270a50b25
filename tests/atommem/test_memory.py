import asyncio

import pytest

from atommem.actions import Action
from atommem.config import MemoryConfig
from atommem.episode import Outcome
from atommem.errors import OutageError
from atommem.memory.working import WorkingMemory
from tests.fakes import WordEmbedder, WordTokenizer

CREATE, READ, UPDATE = "create", "read", "update"
DELETE, SCRATCHPAD = "delete", "scratchpad"


def memory(**settings: object) -> WorkingMemory:
    return WorkingMemory(WordEmbedder(), WordTokenizer(), MemoryConfig(**settings), " [cut]")  # type: ignore[arg-type]


def texts(m: WorkingMemory) -> dict[int, str]:
    return {entry.id: entry.text for entry in m.store.entries()}


def shown(m: WorkingMemory) -> list[tuple[int, str]]:
    return [(item.handle, item.text) for item in m.view().retrieved]


async def test_a_read_is_shown_in_the_next_view_and_changes_nothing() -> None:
    m = memory()
    await m.apply([Action(CREATE, "ann lives here"), Action(CREATE, "bob flies")], 0)
    assert shown(m) == []
    before = texts(m)
    (operation,) = await m.apply([Action(READ, "ann")], 1)
    assert (operation.kind, operation.before, operation.after) == (READ, None, "ann")
    assert shown(m)[0] == (1, "ann lives here")
    assert texts(m) == before
    assert m.view().query == "ann"


async def test_results_stay_until_query_or_entries_change() -> None:
    m = memory(retrieve_k=1)
    await m.apply([Action(CREATE, "ann old"), Action(READ, "ann")], 0)
    assert shown(m) == [(1, "ann old")]
    await m.apply([Action(SCRATCHPAD, "note")], 1)
    assert shown(m) == [(1, "ann old")]
    await m.apply([Action(CREATE, "ann")], 2)
    assert shown(m) == [(1, "ann")]
    await m.apply([Action(CREATE, "bob"), Action(READ, "bob")], 3)
    assert shown(m) == [(1, "bob")]


async def test_handles_are_those_of_the_view_that_the_model_saw() -> None:
    m = memory()
    await m.apply([Action(CREATE, "ann one"), Action(CREATE, "bob two"), Action(READ, "bob")], 0)
    assert shown(m) == [(1, "bob two"), (2, "ann one")]
    operations = await m.apply(
        [Action(READ, "ann"), Action(UPDATE, "bob three", 1), Action(DELETE, handle=2), Action(DELETE, handle=2)], 1
    )
    # The read in the same completion must not shift the handles.
    assert [(o.outcome, o.entry_id, o.before, o.after) for o in operations[1:]] == [
        (Outcome.APPLIED, 2, "bob two", "bob three"),
        (Outcome.APPLIED, 1, "ann one", None),
        (Outcome.UNKNOWN_HANDLE, None, None, None),
    ]
    assert texts(m) == {2: "bob three"}


@pytest.mark.parametrize("handle", [0, 2, 99, None])
async def test_a_handle_that_was_not_shown_is_skipped_and_the_rest_applies(handle: int | None) -> None:
    m = memory(retrieve_k=1)
    await m.apply([Action(CREATE, "ann one"), Action(CREATE, "bob two"), Action(READ, "ann")], 0)
    operations = await m.apply([Action(UPDATE, "gone", handle), Action(CREATE, "new")], 1)
    assert [o.outcome for o in operations] == [Outcome.UNKNOWN_HANDLE, Outcome.APPLIED]
    assert sorted(texts(m).values()) == ["ann one", "bob two", "new"]


async def test_entries_that_were_never_read_have_no_handle() -> None:
    m = memory()
    await m.apply([Action(CREATE, "ann one")], 0)
    (operation,) = await m.apply([Action(DELETE, handle=1)], 1)
    assert operation.outcome is Outcome.UNKNOWN_HANDLE


async def test_capacity_reject_and_the_room_that_a_delete_makes() -> None:
    m = memory(capacity=1)
    operations = await m.apply([Action(CREATE, "one"), Action(CREATE, "two"), Action(READ, "one")], 0)
    assert [o.outcome for o in operations[:2]] == [Outcome.APPLIED, Outcome.REJECTED]
    assert (m.view().size, m.view().capacity) == (1, 1)
    await m.apply([Action(DELETE, handle=1), Action(CREATE, "three")], 1)
    assert list(texts(m).values()) == ["three"]


async def test_an_eviction_is_logged_and_its_handle_is_gone() -> None:
    m = memory(capacity=1, retention="fifo")
    await m.apply([Action(CREATE, "one"), Action(READ, "one")], 0)
    create, update = await m.apply([Action(CREATE, "two"), Action(UPDATE, "one again", 1)], 1)
    assert create.evicted == 1
    assert update.outcome is Outcome.UNKNOWN_HANDLE
    assert list(texts(m).values()) == ["two"]


async def test_scratchpad_is_replaced_cut_with_a_marker_and_cleared() -> None:
    m = memory(scratchpad_tokens=3)
    await m.apply([Action(SCRATCHPAD, "a b c d e")], 0)
    assert m.view().scratchpad == "a b [cut]"
    (operation,) = await m.apply([Action(SCRATCHPAD, "")], 1)
    assert (operation.before, operation.after, m.view().scratchpad) == ("a b [cut]", "", "")


@pytest.mark.parametrize("kind", [CREATE, READ, UPDATE, DELETE, SCRATCHPAD])
async def test_a_disabled_action_does_nothing_and_is_recorded(kind: str) -> None:
    m = memory(disabled_actions=[str(kind)])
    await m.apply([Action(CREATE, "ann"), Action(READ, "ann"), Action(SCRATCHPAD, "pad")], 0)
    before = (texts(m), m.scratchpad, m.query)
    (operation,) = await m.apply([Action(kind, "changed", 1)], 1)
    assert operation.outcome is Outcome.DISABLED
    assert (texts(m), m.scratchpad, m.query) == before


async def test_one_step_asks_the_embedder_once_per_kind() -> None:
    m = memory()
    embedder = m._embedder
    await m.apply([Action(CREATE, "a"), Action(READ, "x"), Action(CREATE, "b"), Action(READ, "y")], 0)
    assert sorted(embedder.calls) == [("entry", "a", "b"), ("query", "y")]  # type: ignore[attr-defined]
    await m.apply([Action(SCRATCHPAD, "s"), Action(DELETE, handle=1)], 1)
    assert len(embedder.calls) == 2  # type: ignore[attr-defined]


async def test_an_outage_leaves_the_memory_as_it_was() -> None:
    m = memory()
    await m.apply([Action(CREATE, "a"), Action(READ, "a")], 0)
    m._embedder.fail = OutageError("gone")  # type: ignore[attr-defined]
    with pytest.raises(OutageError):
        await m.apply([Action(SCRATCHPAD, "s"), Action(DELETE, handle=1), Action(CREATE, "b")], 1)
    assert (list(texts(m).values()), m.scratchpad) == (["a"], "")


async def test_being_shown_counts_as_use() -> None:
    m = memory(capacity=2, retention="lru", retrieve_k=1)
    await m.apply([Action(CREATE, "ann"), Action(CREATE, "bob"), Action(READ, "ann")], 0)
    await m.apply([Action(CREATE, "eve")], 1)
    assert sorted(texts(m).values()) == ["ann", "eve"]


async def test_episodes_do_not_see_each_other() -> None:
    embedder, tokenizer = WordEmbedder(), WordTokenizer()
    memories = [WorkingMemory(embedder, tokenizer, MemoryConfig()) for _ in range(16)]
    await asyncio.gather(
        *(m.apply([Action(CREATE, f"mine {i}"), Action(READ, "mine")], 0) for i, m in enumerate(memories))
    )
    assert [shown(m) for m in memories] == [[(1, f"mine {i}")] for i in range(16)]
