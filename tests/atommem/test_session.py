"""Sessions: saving, restoring, forking, interruption, and capacity."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from atommem.actions import Action
from atommem.config import MemoryConfig, drawn_capacity
from atommem.embedding.embedder import TextKind, Vectors
from atommem.episode import Step
from atommem.errors import ConfigError, OutageError, TraceError
from atommem.memory.log import Snapshot
from atommem.policy.contract import Completion
from atommem.rollout import Session, StepTimeoutError
from atommem.session_state import SessionFile, SessionState, vectors_path
from tests.atommem.sessions import Embeds, Waits, agent, saying, turns
from tests.fakes import ListPolicy, WordEmbedder, reading


@pytest.mark.parametrize("way", ["compact", "appended", "vectors", "fork"])
async def test_session_restored_continues_identically(way: str, tmp_path: Path) -> None:
    whole = Session(agent(), "t/0")
    expected = await turns(whole, 8)
    session = Session(agent(), "t/0")
    found, path = [], tmp_path / "a session"
    for number in range(8):
        found += await turns(session, 1, number)
        if way == "fork":  # one of the two goes elsewhere
            other, session = (
                (session, session.fork()) if number % 2 else (session.fork("elsewhere"), session)
            )
            before = json.dumps(session.state().to_json())
            await turns(other, 1, 8)
            await other.memory.undo(number)
            assert json.dumps(session.state().to_json()) == before
            assert (other.turns, other.key) == (number + 2, "t/0" if number % 2 else "elsewhere")
            continue
        if way == "appended":
            file = SessionFile(path)
            if number:
                file.read()
            file.write(session.state())
        state = session.state(history=way != "compact", vectors=way == "vectors")
        if way == "vectors":
            state = SessionState.load(state.save(path))
        elif way == "appended":
            state = SessionState.load(path)
        else:
            state = SessionState.from_json(json.loads(json.dumps(state.to_json())))
        session = await Session.restore(agent(), state)
        calls = session.agent.embedder.calls  # type: ignore[attr-defined]
        assert bool(calls) == (way != "vectors" and bool(session.memory.entries()))
    assert found == expected
    assert (session.turns, session.sampled) == (whole.turns, whole.sampled)
    assert session.memory.contents == whole.memory.contents
    if way != "compact":
        assert session.memory.log == whole.memory.log
        views = [session.memory.at(number).contents.view(5) for number in range(9)]
        assert views == [whole.memory.at(number).contents.view(5) for number in range(9)]
        assert [asdict(view) for view in views[:8]] == [step["view"] for step in expected]
    assert {"create", "read", "update", "delete", "scratchpad"} <= {
        operation.kind for operation in whole.memory.log
    }


async def test_session_file_appends_turns_and_is_rewritten_after_undo(
    tmp_path: Path,
) -> None:
    session, file = Session(agent(), "t/0"), SessionFile(tmp_path / "s")
    sizes = []
    for number in range(5):
        await turns(session, 1, number)
        file.write(session.state(vectors=number == 3))
        sizes.append(len(file.path.read_bytes().splitlines()))
        assert SessionState.load(file.path).to_json() == session.state().to_json()
    assert sizes == [1, 2, 3, 4, 5]
    assert vectors_path(file.path).exists()
    await session.memory.undo(3)
    file.write(session.state())
    assert SessionState.load(file.path).to_json() == session.state().to_json()
    assert not vectors_path(file.path).exists()
    await turns(session, 2, 5)
    file.write(session.state())
    assert len(file.path.read_bytes().splitlines()) == 2
    assert SessionState.load(file.path).to_json() == session.state().to_json()
    # As small as its memory, and the log begins anew.
    file.write(session.state(history=False))
    assert len(file.path.read_bytes().splitlines()) == 1
    again = await Session.restore(agent(), SessionState.load(file.path))
    for refused in (again.memory.at, again.memory.undo):
        with pytest.raises(ConfigError, match="the log of this memory begins at step 7"):
            await refused(3)  # type: ignore[misc]


async def test_session_file_cut_anywhere_holds_an_earlier_turn(
    tmp_path: Path,
) -> None:
    session, file = Session(agent(), "t/0"), SessionFile(tmp_path / "s")
    states = []
    for number in range(3):
        await turns(session, 1, number)
        file.write(session.state())
        states.append(session.state().to_json())
    raw = file.path.read_bytes()
    first = raw.index(b"\n")
    for end in range(0, len(raw), 7):
        file.path.write_bytes(raw[:end])
        if end <= first:
            with pytest.raises(TraceError, match="not a session, or damaged"):
                SessionState.load(file.path)
        else:
            again = SessionFile(file.path)
            state = again.read()
            assert state.to_json() == states[raw[:end].count(b"\n") - 1]
            # What is written next stands in the place of what was cut off.
            again.write(replace(state, turns=9))
            assert SessionState.load(file.path).turns == 9


@pytest.mark.parametrize(
    "lines",
    [
        ["hello"],
        ['{"type": "session", "format": 9}'],
        ["STATE", '{"turns": 2, "sampled": 1, "operations": [{"step": 1}]}'],
    ],
)
def test_session_load_damaged_file_is_refused(tmp_path: Path, lines: list[str]) -> None:
    whole = json.dumps(SessionState("k", 0, 0, Snapshot("words/64")).to_json())
    path = tmp_path / "some file"
    path.write_bytes(
        "".join(line.replace("STATE", whole) + "\n" for line in lines).encode("latin-1")
    )
    with pytest.raises(TraceError, match="some file is not a session, or damaged"):
        SessionState.load(path)


async def test_session_restore_mismatch_is_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(TraceError, match=r"cannot read the session .*none: No such file"):
        SessionState.load(tmp_path / "none")
    session = Session(agent(), "t/0")
    await turns(session, 3)
    state = session.state()
    other = agent(embedder=WordEmbedder())
    with pytest.raises(ConfigError, match="embedder='hashing/8/32', this agent has 'words/64'"):
        await Session.restore(other, state)
    again = await Session.restore(other, state, reembed=True)
    assert again.memory.contents == session.memory.contents
    assert again.state().memory.embedder == "words/64"
    with pytest.raises(TraceError, match="contradicts the log before it"):
        await Session.restore(agent(), replace(state, operations=state.operations[::-1]))


# A turn that fails

CREATE = "<create_memory>ann lives</create_memory><read_memory>ann</read_memory>"
CREATE += "<update_scratchpad>x</update_scratchpad>"


class Stuck(Embeds):
    """Its call number `at` never comes back, unless it is cancelled."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.reached = at, asyncio.Event()

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        if len(self.calls) == self.at:
            self.reached.set()
            await asyncio.Event().wait()
        return await super().embed(texts, kind)


async def test_turn_cancelled_leaves_memory_unchanged() -> None:
    embedder = Stuck(2)
    session = Session(agent(saying(CREATE, CREATE.replace("ann", "bob")), embedder=embedder))
    await session.turn(reading("q?"))
    before = session.state(history=True).to_json()
    task = asyncio.create_task(session.turn(reading("q?")))
    await embedder.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    after = session.state().to_json()
    assert {name for name in before if before[name] != after[name]} == {"turns", "sampled"}
    assert (session.turns, len(session.memory.entries())) == (2, 1)


async def test_turn_outage_leaves_memory_unchanged_and_counts_tokens() -> None:
    session = Session(agent(saying(CREATE, CREATE, CREATE)))
    await session.turn(reading("q?"))
    sampled, view, log = session.sampled, session.memory.view(), session.memory.log
    session.agent.embedder.fail = OutageError("gone")  # type: ignore[attr-defined]
    steps: list[Step] = []
    with pytest.raises(OutageError):
        await session.turn(reading("q?"), steps=steps)
    assert (session.turns, session.sampled, len(steps), steps[0].operations) == (
        2,
        2 * sampled,
        1,
        (),
    )
    assert (session.memory.view(), session.memory.log) == (view, log)
    session.agent.embedder.fail = None  # type: ignore[attr-defined]
    again = await session.turn(reading("q?"))
    assert (again.index, again.operations[0].step, again.view) == (2, 2, view)


async def test_turn_deadline_leaves_session_unchanged() -> None:
    loop = asyncio.get_running_loop()
    embedder = Stuck(2)
    session = Session(agent(lambda tokenizer: Waits(tokenizer, [CREATE]), embedder=embedder))
    await session.turn(reading("q?"), deadline=loop.time() + 60)
    before, steps = session.state().to_json(), []
    with pytest.raises(StepTimeoutError):
        await session.turn(reading("q?"), deadline=loop.time() + 0.02, steps=steps)
    assert (session.state().to_json(), steps) == (before, [])
    session.agent.policy = ListPolicy(session.agent.tokenizer, [TimeoutError("mine"), CREATE])  # type: ignore[arg-type]
    with pytest.raises(TimeoutError, match="mine"):  # the policy's own is no time limit
        await session.turn(reading("q?"), deadline=loop.time() + 60)
    assert session.state().to_json() == before
    with pytest.raises(StepTimeoutError):  # it bounds the memory's work too
        await session.turn(reading("q?"), deadline=loop.time() + 0.05, steps=steps)
    assert embedder.reached.is_set()
    assert (len(session.memory.entries()), len(steps)) == (1, 1)


async def test_sessions_of_one_agent_are_independent() -> None:
    alone = []
    for number in range(8):
        session = Session(agent(), f"t/{number}")
        await turns(session, 5)
        alone.append((session.state().to_json(), session.memory.view()))
    shared = agent()
    sessions = [Session(shared, f"t/{number}") for number in range(8)]
    await asyncio.gather(*(turns(session, 5) for session in sessions))
    assert [(session.state().to_json(), session.memory.view()) for session in sessions] == alone


@pytest.mark.parametrize(
    ("text", "kinds"), [("<create_memory>a</create_memory>", ["create"]), ("hm</think>x", [])]
)
async def test_turn_of_chat_server_without_thinking_is_parsed(text: str, kinds: list[str]) -> None:
    shared = agent()
    shared.prompts.opens_thinking = True

    class Chat:
        async def complete_chat(self, messages: object, sampling: object) -> Completion:
            return Completion([], [], text, "stop", 5, 3)

    shared.policy = Chat()  # type: ignore[assignment]
    step = await Session(shared).turn(reading("Who?", chunk="c"))
    assert [action.kind for action in step.actions] == kinds
    assert step.problems == ()


DRAWN = [2, 5, 0]


async def test_session_capacity_follows_its_task() -> None:
    one = agent(memory={"capacity": None, "capacities": DRAWN})
    seen = set()
    for task in range(30):
        capacity = drawn_capacity(DRAWN, f"t{task}")
        seen.add(capacity)
        sessions = [Session(one, f"t{task}/{sample}") for sample in range(3)]
        assert {session.memory.view().capacity for session in sessions} == {capacity}
        await sessions[0].memory.apply([Action("create", f"fact {i}") for i in range(8)], 0)
        assert len(sessions[0].memory.entries()) == (capacity or 8)
        restored = await Session.restore(one, sessions[0].state())
        assert restored.memory.view().capacity == capacity
    assert seen == {2, 5, None}
    assert MemoryConfig(capacity=3, capacities=DRAWN).of_task("t").capacity == 3
    assert MemoryConfig().of_task("t").capacity is None
    named = MemoryConfig(capacity=3, retention="oracle(needs=n.json, task=$task)").of_task("t-1")
    assert (named.capacity, named.retention) == (3, "oracle(needs=n.json, task=t-1)")
    with pytest.raises(ConfigError, match="at least 1 each, or 0"):
        MemoryConfig(capacities=[3, -1])
