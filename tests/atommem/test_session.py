"""Sessions that are put down, taken up, forked, interrupted; and episodes that go on where they stopped."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from atommem.config import MemoryConfig
from atommem.embedding.embedder import TextKind, Vectors
from atommem.embedding.hashing import HashingEmbedder
from atommem.environment import StepResult, Turn
from atommem.envs.task import Document, Question, Task
from atommem.episode import Episode, Step
from atommem.episode_runner import EpisodeRunner, Limits
from atommem.errors import ConfigError, OutageError, TraceError
from atommem.memory.contents import Snapshot
from atommem.observation import StopReason
from atommem.policy.contract import Completion, Sampling
from atommem.session import Agent, Session, TurnTimeoutError
from atommem.session_state import SessionFile, SessionState, vectors_path
from atommem.trace import read_trace, write_trace
from tests.fakes import ListPolicy, WordEmbedder, WordTokenizer, longdoc, reading

TASK = Task(
    "t1",
    (Question("Where does Ann live?", ("Rome",)), Question("Who sings?", ("Bob",))),
    tuple(Document("", f"Person {number} lives in place {number}.") for number in range(6)),
)
WORDS = ["ann", "bob", "eve", "rome", "oslo", "sings", "lives"]


class Embeds(HashingEmbedder):
    """Keeps what it was asked. `fail` makes every call raise it."""

    def __init__(self) -> None:
        super().__init__(32)
        self.calls: list[tuple[str, ...]] = []
        self.fail: Exception | None = None

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        self.calls.append((kind, *texts))
        if self.fail is not None:
            raise self.fail
        return await super().embed(texts, kind)


class Muse:
    """A policy without memory of its own: what it writes follows from the prompt and the seed alone."""

    def __init__(self, tokenizer: WordTokenizer) -> None:
        self.tokenizer = tokenizer
        self.asked: list[tuple[str, Sampling]] = []

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        prompt = self.tokenizer.decode(prompt_ids, skip_special_tokens=False)
        self.asked.append((prompt, sampling))
        rng = random.Random(f"{prompt}/{sampling.seed}")
        parts = []
        for kind in rng.choices(
            ("create", "update", "delete", "read", "pad", "end", "junk"), (4, 2, 1, 3, 1, 1, 1), k=4
        ):
            words = " ".join(rng.choices(WORDS, k=3))
            parts.append(
                {
                    "create": f"<create_memory>{words}</create_memory>",
                    "update": f"<update_memory>Memory {rng.randrange(1, 4)}: {words}</update_memory>",
                    "delete": f"<delete_memory>Memory {rng.randrange(1, 4)}</delete_memory>",
                    "read": f"<read_memory>{words}</read_memory>",
                    "pad": f"<update_scratchpad>{words}</update_scratchpad>",
                    "end": rf"<final_answer>\boxed{{{words}}}</final_answer>",
                    "junk": "<create_memory>never closed",
                }[kind]
            )
        text = " ".join(parts)
        ids = [*self.tokenizer.encode(text), 0]
        return Completion(ids, [-0.5] * len(ids), text, "stop")

    async def close(self) -> None:
        return None


def agent(policy: Any = None, **settings: Any) -> Agent:
    """Of a process of its own: nothing is shared with another agent."""
    tokenizer = WordTokenizer()
    made = policy(tokenizer) if callable(policy) else Muse(tokenizer)
    memory = MemoryConfig(**{"capacity": 5, "retention": "lru", "retrieve_k": 3, **settings.pop("memory", {})})
    return Agent(
        policy=made,
        embedder=settings.pop("embedder", None) or Embeds(),
        tokenizer=tokenizer,
        environments=longdoc(tokenizer, max_reads=2),
        memory=memory,
        sampling=Sampling(seed=3, max_tokens=100),
        **settings,
    )


def saying(*texts: str | Exception) -> Callable[[WordTokenizer], ListPolicy]:
    return lambda tokenizer: ListPolicy(tokenizer, texts)


def told(step: Step) -> dict[str, Any]:
    """All that a step says, its time apart, in words: two agents number their tokens as they come up."""
    return {**asdict(step), "seconds": 0.0, "prompt_ids": len(step.prompt_ids), "token_ids": len(step.token_ids)}


def json_trip(state: SessionState) -> SessionState:
    return SessionState.from_json(json.loads(json.dumps(state.to_json())))


async def turns(session: Session, count: int, first: int = 0) -> list[dict[str, Any]]:
    return [
        told(await session.turn(reading("q?", chunk=f"part {number}", index=number, count=9)))
        for number in range(first, first + count)
    ]


@pytest.mark.parametrize("way", ["json", "compact", "file", "appended", "vectors", "fork"])
async def test_a_session_goes_on_as_if_it_had_not_been_put_down(way: str, tmp_path: Path) -> None:
    whole = Session(agent(), "t/0")
    expected = await turns(whole, 8)
    session = Session(agent(), "t/0")
    found, path = [], tmp_path / "a session"
    for number in range(8):
        found += await turns(session, 1, number)
        if way == "fork":
            twin = session.fork()
            await turns(session, 1, 8)  # the parent goes elsewhere
            session = twin
            continue
        if way == "appended":
            file = SessionFile(path)
            if number:
                file.read()
            file.write(session.put_down())
        state = session.put_down(history=way != "compact", vectors=way == "vectors")
        if way in ("file", "vectors"):
            state = SessionState.load(state.save(path))
        else:
            state = SessionState.load(path) if way == "appended" else json_trip(state)
        session = await Session.take_up(agent(), state)
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
    assert {"create", "read", "update", "delete", "scratchpad"} <= {operation.kind for operation in whole.memory.log}


async def test_seeds_are_those_of_the_session_that_was_put_down() -> None:
    one = Session(agent(), "t/0")
    await turns(one, 2)
    two = await Session.take_up(agent(), json_trip(one.put_down()))
    other = one.fork("t/1")
    for session in (one, two, other):
        await turns(session, 1, 2)
    seeds = [session.agent.policy.asked[place][1].seed for session, place in ((one, 2), (two, 0), (other, 3))]
    assert seeds[0] == seeds[1] != seeds[2]


async def test_a_fork_leaves_its_parent_as_it_was() -> None:
    parent = Session(agent(), "t/0")
    await turns(parent, 4)
    before = json.dumps(parent.put_down().to_json())
    fork = parent.fork("elsewhere")
    await turns(fork, 3, 4)
    await fork.memory.undo(2)
    assert json.dumps(parent.put_down().to_json()) == before
    assert (fork.turns, fork.key) == (7, "elsewhere")
    whole = Session(agent(), "t/0")
    assert (await turns(whole, 6))[4:] == await turns(parent, 2, 4)


async def test_a_file_takes_one_line_a_turn_and_is_written_anew_after_an_undo(tmp_path: Path) -> None:
    session, file = Session(agent(), "t/0"), SessionFile(tmp_path / "s")
    sizes = []
    for number in range(5):
        await turns(session, 1, number)
        file.write(session.put_down(vectors=number == 3))
        sizes.append(len(file.path.read_bytes().splitlines()))
        assert SessionState.load(file.path).to_json() == session.put_down().to_json()
    assert sizes == [1, 2, 3, 4, 5]
    assert vectors_path(file.path).exists()
    await session.memory.undo(3)
    file.write(session.put_down())
    assert SessionState.load(file.path).to_json() == session.put_down().to_json()
    assert not vectors_path(file.path).exists()
    await turns(session, 2, 5)
    file.write(session.put_down())
    assert len(file.path.read_bytes().splitlines()) == 2
    assert SessionState.load(file.path).to_json() == session.put_down().to_json()
    # As small as its memory, and the log begins anew.
    file.write(session.put_down(history=False))
    assert len(file.path.read_bytes().splitlines()) == 1
    again = await Session.take_up(agent(), SessionState.load(file.path))
    with pytest.raises(ConfigError, match="the log of this memory begins at step 7"):
        again.memory.at(3)


async def test_wherever_a_file_is_cut_off_it_holds_an_earlier_turn_or_says_that_it_is_damaged(tmp_path: Path) -> None:
    session, file = Session(agent(), "t/0"), SessionFile(tmp_path / "s")
    states = []
    for number in range(3):
        await turns(session, 1, number)
        file.write(session.put_down())
        states.append(session.put_down().to_json())
    raw = file.path.read_bytes()
    first = raw.index(b"\n")
    for end in range(0, len(raw), 7):
        file.path.write_bytes(raw[:end])
        if end <= first:
            with pytest.raises(TraceError, match="it has no whole line"):
                SessionState.load(file.path)
        else:
            again = SessionFile(file.path)
            state = again.read()
            assert state.to_json() == states[raw[:end].count(b"\n") - 1]
            # What is written next stands in the place of what was cut off.
            again.write(replace(state, turns=9))
            assert SessionState.load(file.path).turns == 9


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{}"], "this is no session that was put down"),
        (["[1]"], "this is no session that was put down"),
        (["hello"], "a line is not JSON"),
        (["\x00\xff"], "a line is not JSON"),
        (['{"type": "episode", "format": 2}'], "this is no session that was put down"),
        (['{"type": "session", "format": 9}'], "this session has format 9, this version reads 1"),
        (['{"type": "session", "format": 1, "key": "k", "memory": 3}'], "no memory snapshot of format 1"),
        (["STATE", '{"turns": 2}'], "damaged: KeyError 'operations'"),
        (["STATE", '{"turns": 2, "sampled": 1, "operations": [{"step": 1}]}'], "damaged: TypeError"),
        (["STATE", '{"turns": "many", "sampled": 1, "operations": []}'], "damaged: ValueError"),
    ],
)
def test_what_is_no_session_is_refused_with_its_name(tmp_path: Path, lines: list[str], message: str) -> None:
    whole = json.dumps(SessionState("k", 0, 0, Snapshot("words/64")).to_json())
    path = tmp_path / "some file"
    path.write_bytes("".join(line.replace("STATE", whole) + "\n" for line in lines).encode("latin-1"))
    with pytest.raises(TraceError, match=f"some file.*{re.escape(message)}"):
        SessionState.load(path)


async def test_a_missing_file_another_embedder_or_a_log_that_does_not_fit_are_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot read the session .*none: No such file"):
        SessionState.load(tmp_path / "none")
    session = Session(agent(), "t/0")
    await turns(session, 3)
    state = session.put_down()
    other = agent(embedder=WordEmbedder())
    with pytest.raises(ConfigError, match="embedder 'hashing/8/32', this one is 'words/64'"):
        await Session.take_up(other, state)
    again = await Session.take_up(other, state, reembed=True)
    assert again.memory.contents == session.memory.contents
    assert again.put_down().memory.embedder == "words/64"
    with pytest.raises(TraceError, match="does not fit what came before it"):
        await Session.take_up(agent(), replace(state, operations=state.operations[::-1]))
    vectors_path(state.save(tmp_path / "s")).write_bytes(b"PK")
    assert SessionState.load(tmp_path / "s") == replace(state, vectors=None)


# One turn that goes wrong.

CREATE = (
    "<create_memory>ann lives</create_memory><read_memory>ann</read_memory><update_scratchpad>x</update_scratchpad>"
)


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


@pytest.mark.parametrize("at", [2, 3])
async def test_a_turn_that_is_cancelled_leaves_the_memory_as_it_was(at: int) -> None:
    embedder = Stuck(at)
    session = Session(agent(saying(CREATE, CREATE), embedder=embedder))
    await session.turn(reading("q?"))
    before = session.put_down(history=True).to_json()
    task = asyncio.create_task(session.turn(reading("q?")))
    await embedder.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    after = session.put_down().to_json()
    assert {name for name in before if before[name] != after[name]} == {"turns", "sampled"}
    assert (session.turns, len(session.memory.entries())) == (2, 1)


async def test_an_outage_while_actions_are_applied_leaves_the_memory_and_the_tokens_count() -> None:
    session = Session(agent(saying(CREATE, CREATE, CREATE)))
    await session.turn(reading("q?"))
    sampled, view, log = session.sampled, session.memory.view(), session.memory.log
    session.agent.embedder.fail = OutageError("gone")  # type: ignore[attr-defined]
    steps: list[Step] = []
    with pytest.raises(OutageError):
        await session.turn(reading("q?"), steps=steps)
    assert (session.turns, session.sampled, len(steps), steps[0].operations) == (2, 2 * sampled, 1, ())
    assert (session.memory.view(), session.memory.log) == (view, log)
    session.agent.embedder.fail = None  # type: ignore[attr-defined]
    again = await session.turn(reading("q?"))
    assert (again.index, again.operations[0].step, again.view) == (2, 2, view)


class Waits(ListPolicy):
    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        if not self.texts:
            await asyncio.Event().wait()
        return await super().complete(prompt_ids, sampling)


async def test_a_deadline_ends_a_turn_and_leaves_the_session_as_it_was() -> None:
    session = Session(agent(lambda tokenizer: Waits(tokenizer, [CREATE])))
    await session.turn(reading("q?"), deadline=asyncio.get_running_loop().time() + 60)
    before, steps = session.put_down().to_json(), []
    with pytest.raises(TurnTimeoutError):
        await session.turn(reading("q?"), deadline=asyncio.get_running_loop().time() + 0.02, steps=steps)
    assert (session.put_down().to_json(), steps) == (before, [])
    session.agent.policy = ListPolicy(session.agent.tokenizer, [TimeoutError("mine")])  # type: ignore[arg-type]
    with pytest.raises(TimeoutError, match="mine"):  # the policy's own is no time limit
        await session.turn(reading("q?"), deadline=asyncio.get_running_loop().time() + 60)
    assert session.put_down().to_json() == before


async def test_sessions_of_one_agent_do_not_mix() -> None:
    alone = []
    for number in range(8):
        session = Session(agent(), f"t/{number}")
        await turns(session, 5)
        alone.append((session.put_down().to_json(), session.memory.view()))
    shared = agent()
    sessions = [Session(shared, f"t/{number}") for number in range(8)]
    await asyncio.gather(*(turns(session, 5) for session in sessions))
    assert [(session.put_down().to_json(), session.memory.view()) for session in sessions] == alone


@pytest.mark.parametrize("keep", [True, False])
async def test_prompt_ids_are_kept_where_they_are_trained_on(keep: bool) -> None:
    session = Session(agent(keep_prompts=keep))
    step = await session.turn(reading("q?"))
    length = len(session.agent.prompts.build(step.observation, step.view))
    assert (len(step.prompt_ids), step.prompt_tokens) == (length if keep else 0, length)


async def test_the_last_turn_gets_the_tokens_that_it_is_given() -> None:
    session = Session(agent())
    await session.turn(reading("q?"), max_tokens=7)
    await session.turn(reading("q?"), max_tokens=700)
    assert [sampling.max_tokens for _, sampling in session.agent.policy.asked] == [7, 100]  # type: ignore[attr-defined]


# Episodes.


def runner(policy: Any = None, limits: Limits | None = None, **settings: Any) -> EpisodeRunner:
    return EpisodeRunner(agent(policy, **settings), limits=limits)


def outcome(episode: Episode) -> tuple[Any, ...]:
    steps = [told(step) for step in episode.steps]
    return steps, episode.answers, episode.reward, episode.metrics, episode.stop_reason


@pytest.mark.parametrize("traced", [False, True])
async def test_an_episode_goes_on_from_any_step_without_asking_again(traced: bool, tmp_path: Path) -> None:
    whole = await runner().run(TASK, 4)
    assert len(whole.steps) > 6
    past = whole.steps
    if traced:
        path = write_trace(tmp_path / "t", whole, {}, tokens=True)
        past = read_trace(path).episode.steps
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))
        assert [told(step) for step in read_trace(path).episode.steps] == [told(step) for step in whole.steps[:3]]
    for count in range(len(past) + 1):
        run = runner()
        again = await run.run(TASK, 4, past[:count])
        assert outcome(again) == outcome(whole)
        assert len(run.agent.policy.asked) == len(past) - count  # type: ignore[attr-defined]
        assert again.seconds >= sum(step.seconds for step in past[:count])
    fork = await runner().run(TASK, 5, past[:3])  # another sample of it, from step 3 on
    assert outcome(fork)[0][:3] == outcome(whole)[0][:3]
    assert outcome(fork)[0][3]["text"] != outcome(whole)[0][3]["text"]
    assert fork.sample == 5


async def test_an_episode_that_was_cancelled_goes_on_after_its_last_whole_turn() -> None:
    whole = await runner().run(TASK)
    for number in range(len(whole.steps)):
        run, reached, kept = runner(), asyncio.Event(), {}
        complete = run.agent.policy.complete

        async def hanging(*request: Any, number: int = number, run: Any = run, **settings: Any) -> Any:
            if len(run.agent.policy.asked) == number:
                reached.set()  # noqa: B023
                await asyncio.Event().wait()
            return await complete(*request, **settings)  # noqa: B023

        run.agent.policy.complete = hanging  # type: ignore[method-assign]
        work = asyncio.create_task(run.run_all([(TASK, 0)], kept=kept))
        await reached.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert len(kept[TASK.id, 0].steps) == number
        other = runner()
        (again,) = await other.run_all([(TASK, 0)], kept=kept)
        assert outcome(again) == outcome(whole)
        assert len(other.agent.policy.asked) == len(whole.steps) - number  # type: ignore[attr-defined]
        assert await other.run_all([(TASK, 0)], kept=kept) == [again]  # it has ended
        assert len(other.agent.policy.asked) == len(whole.steps) - number  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("limits", "reason"),
    [(Limits(max_steps=5), StopReason.STEP_LIMIT), (Limits(max_tokens=90), StopReason.TOKEN_LIMIT)],
)
async def test_limits_count_what_was_before(limits: Limits, reason: StopReason) -> None:
    whole = await runner(limits=limits).run(TASK)
    assert whole.stop_reason is reason
    for count in range(1, len(whole.steps) + 1):
        assert outcome(await runner(limits=limits).run(TASK, past=whole.steps[:count])) == outcome(whole)


async def test_time_that_was_spent_before_counts() -> None:
    whole = await runner().run(TASK)
    slow = [replace(step, seconds=100.0) for step in whole.steps[:2]]
    late = await runner(limits=Limits(max_seconds=150)).run(TASK, past=slow)
    assert (late.stop_reason, len(late.steps)) == (StopReason.TIME_LIMIT, 2)
    assert late.seconds >= 200


async def test_an_episode_that_an_outage_ended_applies_what_it_had_sampled() -> None:
    whole = await runner().run(TASK)
    at = next(number for number, step in enumerate(whole.steps[2:], 2) if "<create" in step.text)
    failing = runner()
    embed = failing.agent.embedder.embed

    async def fails(texts: Sequence[str], kind: TextKind) -> Vectors:
        if len(failing.agent.policy.asked) == at + 1:  # type: ignore[attr-defined]
            raise OutageError("gone")
        return await embed(texts, kind)

    failing.agent.embedder.embed = fails  # type: ignore[method-assign]
    failed = await failing.run(TASK)
    assert (failed.stop_reason, len(failed.steps), failed.steps[-1].operations) == (StopReason.FAILED, at + 1, ())
    run = runner()
    again = await run.run(TASK, past=failed.steps)
    assert outcome(again) == outcome(whole)
    assert len(run.agent.policy.asked) == len(whole.steps) - at - 1  # type: ignore[attr-defined]
    assert failed.steps[-1].operations == ()  # what was given is not changed


async def test_a_past_that_is_not_this_episodes_is_refused() -> None:
    whole = await runner().run(TASK)
    with pytest.raises(TraceError, match=r"has the steps \[1, 2\]: give all of them from step 0"):
        await runner().run(TASK, past=whole.steps[1:3])
    other = replace(TASK, documents=(Document("", "Another."), *TASK.documents[1:]))
    with pytest.raises(TraceError, match=r"step 0 of task 't1' \(chunk 1/6\) showed something else then"):
        await runner().run(other, past=whole.steps[:3])
    with pytest.raises(TraceError, match="does not fit"):
        await runner().run(TASK, past=[whole.steps[0], replace(whole.steps[1], operations=whole.steps[3].operations)])


async def test_the_environment_is_driven_by_the_turns_as_they_were() -> None:
    whole = await runner().run(TASK)
    run = runner()
    driven: list[Turn] = []

    class Environments(type(run.environments)):  # type: ignore[misc]
        def __call__(self) -> Any:
            environment = super().__call__()
            step = environment.step

            async def noted(turn: Turn) -> StepResult:
                driven.append(turn)
                return await step(turn)

            environment.step = noted
            return environment

    run.agent.environments = Environments(run.environments.config, run.agent.tokenizer)
    await run.run(TASK, past=whole.steps[:4])
    assert [(t.text, t.actions, t.problems, t.operations) for t in driven] == [
        (s.text, s.actions, s.problems, s.operations) for s in whole.steps
    ]


async def test_the_token_limit_counts_what_a_chat_server_sampled_before() -> None:
    limits = Limits(max_tokens=90)
    whole = await runner(limits=limits).run(TASK)
    past = [replace(step, token_ids=[], logprobs=[]) for step in whole.steps]  # a chat server returns text only
    again = await runner(limits=limits).run(TASK, past=past)
    assert (again.stop_reason, len(again.steps)) == (StopReason.TOKEN_LIMIT, len(past))


@pytest.mark.slow
def test_episodes_that_processes_take_from_each_other_are_the_uninterrupted_ones() -> None:
    """`scripts/bench_sessions.py` in short: the scripted expert, four episodes, two processes."""
    pytest.importorskip("transformers")
    scripts = Path(__file__).parents[2] / "scripts"
    command = [sys.executable, str(scripts / "bench_sessions.py"), "--quick"]
    environment = {**os.environ, "PYTHONPATH": str(scripts.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["holds"]
    found = result["hashing"]
    assert (found["episodes"], found["differences"]) == (4, {})
    assert found["turns"] > 20
    assert {"create", "read", "scratchpad", "retrieve"} <= set(found["operations"])


@pytest.mark.parametrize(("text", "kinds"), [("<create_memory>a</create_memory>", ["create"]), ("hm</think>x", [])])
async def test_a_chat_server_may_have_taken_the_thoughts_out(text: str, kinds: list[str]) -> None:
    shared = agent()
    shared.prompts.opens_thinking = True

    class Chat:
        async def complete_chat(self, messages: object, sampling: object) -> Completion:
            return Completion([], [], text, "stop", 5, 3)

    shared.policy = Chat()  # type: ignore[assignment]
    step = await Session(shared).turn(reading("Who?", chunk="c"))
    assert [action.kind for action in step.actions] == kinds
    assert step.problems == ()


async def test_the_deadline_bounds_the_memory_too() -> None:
    class Hanging(WordEmbedder):
        async def embed(self, texts: Sequence[str], kind: str) -> Any:
            await asyncio.sleep(60)

    shared = agent(embedder=Hanging())

    class Chat:
        async def complete_chat(self, messages: object, sampling: object) -> Completion:
            return Completion([], [], "<create_memory>a</create_memory>", "stop", 5, 3)

    shared.policy = Chat()  # type: ignore[assignment]
    session = Session(shared)
    with pytest.raises(TurnTimeoutError):
        await session.turn(reading("Who?", chunk="c"), deadline=asyncio.get_running_loop().time() + 0.05)
    assert session.memory.entries() == []


def test_a_rule_that_is_not_there_is_told_before_any_episode() -> None:
    with pytest.raises(ConfigError, match="nope"):
        agent(memory={"retention": "nope"})
