"""Sessions: saving, restoring, forking, interruption, and capacity."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from atommem.actions import Action
from atommem.config import drawn_capacity
from atommem.embedding.embedder import TextKind, Vectors
from atommem.episode import Step
from atommem.errors import ConfigError, OutageError, TraceError
from atommem.process import ActivityClock
from atommem.rollout import Session, StepTimeoutError
from atommem.session_state import SessionState
from tests.atommem.sessions import Embeds, Waits, agent, saying, take_steps
from tests.fakes import ListPolicy, WordEmbedder, reading


@pytest.mark.parametrize("way", ["json", "file with vectors", "fork"])
async def test_session_restored_continues_identically(way: str, tmp_path: Path) -> None:
    whole = Session(agent(), "t/0")
    expected = await take_steps(whole, 8)
    session, found = Session(agent(), "t/0"), []
    for number in range(8):
        found += await take_steps(session, 1, number)
        if way == "fork":  # the other one goes elsewhere
            other, session = session, session.fork()
            await take_steps(other, 1, 8)
            await other.memory.undo(number)
            continue
        if way == "json":
            state = SessionState.from_json(json.loads(json.dumps(session.state().to_json())))
        else:
            state = SessionState.load(session.state(vectors=True).save(tmp_path / "a session"))
        embedder = Embeds()
        session = await Session.restore(agent(embedder=embedder), state)
        assert bool(embedder.calls) == (way == "json" and bool(session.memory.entries()))
    assert found == expected
    assert (session.steps, session.sampled) == (whole.steps, whole.sampled)
    assert session.memory.contents == whole.memory.contents
    assert session.memory.log == whole.memory.log


async def test_session_restore_mismatch_is_refused() -> None:
    session = Session(agent(), "t/0")
    await take_steps(session, 3)
    state = session.state()
    other = agent(embedder=WordEmbedder())
    with pytest.raises(ConfigError, match="embedder='hashing/8/32', this agent has 'words/64'"):
        await Session.restore(other, state)
    again = await Session.restore(other, state, reembed=True)
    assert again.memory.contents == session.memory.contents
    with pytest.raises(TraceError, match="contradicts the log before it"):
        await Session.restore(agent(), replace(state, operations=state.operations[::-1]))


CREATE = "<create_memory>ann lives</create_memory><read_memory>ann</read_memory>"
CREATE += "<update_scratchpad>x</update_scratchpad>"


class Stuck(Embeds):
    """Its third call never comes back, unless it is cancelled."""

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        if len(self.calls) == 2:
            await asyncio.Event().wait()
        return await super().embed(texts, kind)


async def test_turn_outage_leaves_memory_unchanged_and_counts_tokens() -> None:
    embedder = Embeds()
    session = Session(agent(saying(CREATE, CREATE, CREATE), embedder=embedder))
    await session.step(reading("q?"))
    sampled, view, log = session.sampled, session.memory.view(), session.memory.log
    embedder.fail = OutageError("gone")
    steps: list[Step] = []
    with pytest.raises(OutageError):
        await session.step(reading("q?"), steps=steps)
    assert (session.steps, session.sampled) == (2, 2 * sampled)
    assert [step.operations for step in steps] == [()]
    assert (session.memory.view(), session.memory.log) == (view, log)
    embedder.fail = None
    again = await session.step(reading("q?"))
    assert (again.index, again.operations[0].step, again.view) == (2, 2, view)


async def test_turn_deadline_leaves_session_unchanged() -> None:
    loop = asyncio.get_running_loop()
    session = Session(agent(lambda tokenizer: Waits(tokenizer, [CREATE]), embedder=Stuck()))
    await session.step(reading("q?"), deadline=loop.time() + 60)
    before, steps = session.state().to_json(), []
    with pytest.raises(StepTimeoutError):
        await session.step(reading("q?"), deadline=loop.time() + 0.02, steps=steps)
    assert (session.state().to_json(), steps) == (before, [])
    session.agent.policy = ListPolicy(session.agent.tokenizer, [CREATE])  # type: ignore[arg-type]
    with pytest.raises(StepTimeoutError):  # it bounds the memory's work too
        await session.step(reading("q?"), deadline=loop.time() + 0.05, steps=steps)
    assert (len(session.memory.entries()), len(steps)) == (1, 1)


async def test_sessions_of_one_agent_are_independent() -> None:
    alone = [await take_steps(Session(agent(), f"t/{number}"), 5) for number in range(8)]
    shared = agent()
    sessions = [Session(shared, f"t/{number}") for number in range(8)]
    assert await asyncio.gather(*(take_steps(session, 5) for session in sessions)) == alone


async def test_session_capacity_follows_its_task() -> None:
    drawn = [2, 5, 0]
    one, seen = agent(memory={"capacity": None, "capacities": drawn}), set()
    for task in range(30):
        capacity = drawn_capacity(drawn, f"t{task}")
        seen.add(capacity)
        session = Session(one, f"t{task}/1")
        await session.memory.apply([Action("create", f"fact {i}") for i in range(8)], 0)
        assert len(session.memory.entries()) == (capacity or 8)
        restored = await Session.restore(one, session.state())
        assert restored.memory.view().capacity == capacity
    assert seen == {2, 5, None}


def test_activity_clock_overlapping_intervals_count_once() -> None:
    now = 1.0
    clock = ActivityClock(lambda: now)
    with clock.busy("generate"):
        now = 2.0
        with clock.busy("embed"), clock.busy("generate"):
            now = 5.0
        now = 6.0
        assert clock.take() == {"generate": 5.0, "embed": 3.0}
        now = 8.0
    assert clock.take() == {"generate": 2.0}
    assert clock.take() == {}
