"""Replaying an operation log: from hand-written operations, and from a memory that was really used."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atommem.actions import Action
from atommem.config import MemoryConfig
from atommem.embedding.hashing import HashingEmbedder
from atommem.episode import Operation, Outcome
from atommem.errors import TraceError
from atommem.memory.operations import Contents, replay
from atommem.memory.working import WorkingMemory
from tests.fakes import WordTokenizer

CREATE, READ, UPDATE, DELETE, SCRATCHPAD = (
    "create",
    "read",
    "update",
    "delete",
    "scratchpad",
)
DONE = Outcome.APPLIED

LOG = [
    Operation(0, CREATE, DONE, entry_id=1, after="one"),
    Operation(0, CREATE, DONE, entry_id=2, after="two"),
    Operation(0, READ, DONE, before=None, after="query"),
    Operation(1, UPDATE, DONE, entry_id=1, handle=2, before="one", after="uno"),
    Operation(1, UPDATE, Outcome.UNKNOWN_HANDLE, handle=9),
    Operation(1, SCRATCHPAD, DONE, before="", after="plan"),
    Operation(2, CREATE, Outcome.REJECTED, after="lost"),
    Operation(2, CREATE, DONE, entry_id=3, after="three", evicted=1),
    Operation(2, DELETE, DONE, entry_id=2, handle=1, before="two"),
    Operation(2, DELETE, Outcome.DISABLED, handle=1),
]


def test_a_log_is_replayed() -> None:
    assert replay(LOG) == Contents(entries={3: "three"}, scratchpad="plan", query="query", newest_id=3)
    assert replay(LOG[:4]) == Contents({1: "uno", 2: "two"}, "", "query", 2)
    assert replay([]) == Contents()


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (Operation(5, CREATE, DONE, entry_id=3, after="x"), "its new id is 3, after 3"),
        (Operation(5, CREATE, DONE, entry_id=None, after="x"), "its new id is None"),
        (Operation(5, CREATE, DONE, entry_id=4, after="x", evicted=2), "no entry 2"),
        (Operation(5, CREATE, DONE, entry_id=4), "what it wrote"),
        (Operation(5, UPDATE, DONE, entry_id=2, before="two", after="x"), "no entry 2"),
        (Operation(5, UPDATE, DONE, entry_id=3, before="tree", after="x"), "'three', not 'tree'"),
        (Operation(5, DELETE, DONE, before="three"), "no entry None"),
        (Operation(5, DELETE, DONE, entry_id=3), "'three', not None"),
        (Operation(5, SCRATCHPAD, DONE, before="", after="x"), "the scratchpad is 'plan'"),
        (Operation(5, READ, DONE, before=None, after="x"), "the query is 'query'"),
        (Operation(5, "answer", DONE, after="x"), "answer is no memory action"),
    ],
)
def test_a_log_that_contradicts_itself_is_refused(operation: Operation, message: str) -> None:
    with pytest.raises(TraceError, match=message) as raised:
        replay([*LOG, operation])
    assert "step 5" in str(raised.value)


ACTIONS = st.one_of(
    st.builds(Action, st.sampled_from([CREATE, READ, SCRATCHPAD]), st.text(alphabet="ab ", min_size=1, max_size=8)),
    st.builds(Action, st.sampled_from([UPDATE, DELETE]), st.text(alphabet="cd", min_size=1), st.integers(0, 4)),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(ACTIONS, max_size=6), max_size=6),
    st.sampled_from(["reject", "fifo", "lru"]),
    st.sampled_from([None, 2]),
)
def test_the_log_of_a_memory_replays_to_its_contents(
    steps: list[list[Action]], retention: str, capacity: int | None
) -> None:
    async def use() -> None:
        config = MemoryConfig(capacity=capacity, retention=retention, retrieve_k=2, scratchpad_tokens=2)
        memory = WorkingMemory(HashingEmbedder(16), WordTokenizer(), config)
        log: list[Operation] = []
        for step, actions in enumerate(steps):
            log.extend(await memory.apply(actions, step))
            replayed = replay(log)
            assert list(replayed.entries.items()) == [(entry.id, entry.text) for entry in memory.store.entries()]
            assert (replayed.scratchpad, replayed.query) == (memory.scratchpad, memory.query)
        # A log that lacks a line that changed something is refused or leads elsewhere.
        applied = [index for index, operation in enumerate(log) if operation.outcome is DONE]
        if applied:
            last = log[applied[-1]]
            if last.before != last.after:
                assert replay(log[: applied[-1]]) != replay(log)

    asyncio.run(use())


def test_operations_that_did_not_apply_change_nothing() -> None:
    for outcome in (Outcome.REJECTED, Outcome.UNKNOWN_HANDLE, Outcome.DISABLED):
        assert replay([replace(LOG[0], outcome=outcome)]) == Contents()
