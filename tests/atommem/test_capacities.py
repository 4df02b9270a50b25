"""One capacity for each task: drawn by its id, stated in the prompt, the same for a session that is taken up."""

from __future__ import annotations

import pytest

from atommem.actions import Action
from atommem.config import MemoryConfig, drawn_capacity
from atommem.errors import ConfigError
from atommem.session import Session
from tests.atommem.sessions import agent

DRAWN = [2, 5, 0]


async def test_a_session_has_the_capacity_of_its_task() -> None:
    one = agent(memory={"capacity": None, "capacities": DRAWN})
    seen = set()
    for task in range(30):
        capacity = drawn_capacity(DRAWN, f"t{task}")
        seen.add(capacity)
        sessions = [Session(one, f"t{task}/{sample}") for sample in range(3)]
        assert {session.memory.view().capacity for session in sessions} == {capacity}
        await sessions[0].memory.apply([Action("create", f"fact {i}") for i in range(8)], 0)
        assert len(sessions[0].memory.entries()) == (capacity or 8)
        taken_up = await Session.take_up(one, sessions[0].put_down())
        assert taken_up.memory.view().capacity == capacity
    assert seen == {2, 5, None}


def test_a_capacity_that_is_set_goes_before() -> None:
    assert MemoryConfig(capacity=3, capacities=DRAWN).of_task("t").capacity == 3
    assert MemoryConfig().of_task("t").capacity is None
    named = MemoryConfig(capacity=3, retention="oracle(needs=n.json, task=$task)").of_task("t-1")
    assert (named.capacity, named.retention) == (3, "oracle(needs=n.json, task=t-1)")
    with pytest.raises(ConfigError, match="at least 1 each, or 0"):
        MemoryConfig(capacities=[3, -1])
