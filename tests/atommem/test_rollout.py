"""Sessions: saving, interruption, replies; episodes from empty memory to the reward; traces."""

import asyncio
import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from rich.console import Console

from atommem.config import drawn_capacity
from atommem.envs.task import Document
from atommem.episode import Episode, StopReason
from atommem.errors import ConfigError, OutageError, PolicyError, PromptTooLongError, TraceError
from atommem.policy.contract import Completion, Sampling
from atommem.process import StepTimeoutError, time_limit
from atommem.rollout import Limits, Session
from atommem.session_state import SessionState
from atommem.trace import read_trace, write_trace
from atommem.trace_view import render_trace
from tests.atommem.sessions import ANSWER, TASK, Embeds, agent, runner, saying, take_steps
from tests.fakes import ScriptedPolicy, WordEmbedder, WordTokenizer, reading


@pytest.mark.parametrize("way", ["file", "file with vectors", "fork"])
async def test_session_restored_continues_identically(way, tmp_path):
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
        state = session.state(vectors=way != "file")
        state, embedder = SessionState.load(state.save(tmp_path / "a session")), Embeds()
        session = await Session.restore(agent(embedder=embedder), state)
        assert bool(embedder.calls) == (way == "file" and bool(session.memory.entries()))
    assert found == expected
    assert (session.steps, session.sampled) == (whole.steps, whole.sampled)
    assert session.memory.contents == whole.memory.contents
    assert session.memory.log == whole.memory.log


async def test_session_restore_mismatch_is_refused():
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


WRITE = "<create_memory>ann lives</create_memory><read_memory>ann</read_memory>"
WRITE += "<update_scratchpad>x</update_scratchpad>"


async def forever(*arguments: object) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("failure", "error"), [(OutageError("gone"), OutageError), (forever, StepTimeoutError)]
)
async def test_step_failure_leaves_memory_unchanged_and_counts_tokens(failure, error, monkeypatch):
    session = Session(agent(saying(WRITE, WRITE, WRITE)))
    await session.step(reading("q?"))
    sampled, view, log = session.sampled, session.memory.view(), session.memory.log
    monkeypatch.setattr(session.agent.embedder, "embed", AsyncMock(side_effect=failure))
    with pytest.raises(error):
        async with time_limit(0.05):
            await session.step(reading("q?"))
    assert (session.steps, session.sampled) == (2, 2 * sampled)
    assert (session.memory.view(), session.memory.log) == (view, log)
    monkeypatch.undo()
    again = await session.step(reading("q?"))
    assert (again.index, again.operations[0].step, again.view) == (2, 2, view)


@pytest.mark.parametrize(
    ("text", "finish_reason", "thinking_apart", "created", "opens"),
    [
        (f"Perhaps {WRITE}", "length", False, 0, True),  # cut inside of its thoughts
        (f"Perhaps {WRITE}</think>{WRITE}", "stop", False, 1, True),
        (f"Perhaps {WRITE}</think>{WRITE}", "stop", False, 1, False),  # its template is unknown
        (WRITE, "stop", False, 1, True),  # the server removed the thoughts
        (WRITE, "length", True, 1, True),
    ],
)
async def test_thoughts_of_a_chat_are_not_actions(
    text, finish_reason, thinking_apart, created, opens
):
    reply = Completion([], [], text, finish_reason, 1, 2, thinking_apart)
    policy = SimpleNamespace(complete_chat=AsyncMock(return_value=reply))
    one = agent(lambda tokenizer: policy)
    one.prompts.opens_thinking = opens
    session = Session(one)
    step = await session.step(reading("q?"))
    assert len(session.memory.entries()) == created
    assert [problem.reason for problem in step.problems] == ["unclosed_thinking"] * (1 - created)


async def test_sessions_of_one_agent_are_independent():
    alone = [await take_steps(Session(agent(), f"t/{number}"), 5) for number in range(8)]
    shared = agent()
    sessions = [Session(shared, f"t/{number}") for number in range(8)]
    assert await asyncio.gather(*(take_steps(session, 5) for session in sessions)) == alone


async def test_session_capacity_follows_its_task():
    drawn = [2, 5, 0]
    one = agent(memory={"capacity": None, "capacities": drawn})
    sessions = [Session(one, f"t{task}/1") for task in range(30)]
    capacities = [session.memory.view().capacity for session in sessions]
    assert capacities == [drawn_capacity(drawn, f"t{task}") for task in range(30)]
    assert set(capacities) == {2, 5, None}
    restored = await Session.restore(one, sessions[3].state())
    assert restored.memory.view().capacity == capacities[3]


async def test_episode_runs_from_empty_memory_to_reward():
    create = "<create_memory>Ann lives in Rome</create_memory>"
    create += "<update_scratchpad>look for Ann</update_scratchpad>"
    run = runner(saying(create, "<read_memory>Ann</read_memory>", ANSWER), keep_prompts=True)
    episode = await run.run(TASK, sample=4)
    assert (episode.sample, episode.answers, episode.reward) == (4, ("Rome",), 1.0)
    assert (episode.stop_reason, episode.error) == (StopReason.ANSWERED, None)
    assert [step.view.scratchpad for step in episode.steps] == ["", "look for Ann", "look for Ann"]
    prompts = run.agent.policy.prompts  # type: ignore[attr-defined]
    assert "Ann lives in Rome." in prompts[0]
    assert "Rome." not in prompts[2]
    assert "Memory 1: Ann lives in Rome" in prompts[2]
    for step, prompt in zip(episode.steps, prompts, strict=True):  # token in, token out
        assert run.agent.tokenizer.decode(step.prompt_ids, skip_special_tokens=False) == prompt
        assert len(step.token_ids) == len(step.logprobs)
        assert step.token_ids[-1] == 0


async def test_episode_searches_at_every_step_while_a_query_stands():
    texts = ["x", "<read_memory>y</read_memory>", "x", "<read_memory>z</read_memory>"]
    session = Session(agent(saying(*texts)), "t/0")
    steps = [await session.step(reading("q?", chunk="part")) for _ in texts]
    assert [step.searches for step in steps] == [0, 0, 1, 1]


async def test_episode_outage_is_failed_without_reward(monkeypatch):
    episode = await runner(saying("x", OutageError("server gone"))).run(TASK)
    assert (episode.failed, episode.reward, episode.error) == (True, None, "server gone")
    run = runner(saying("x", "y", ANSWER))
    judge = AsyncMock(side_effect=OutageError("judge gone"))
    monkeypatch.setattr(type(run.factory()), "score", judge)
    episode = await run.run(TASK)
    assert (episode.failed, episode.reward, episode.error) == (True, None, "judge gone")
    with pytest.raises(PolicyError, match="no such model"):  # which every episode would meet
        await runner(saying(PolicyError("no such model"))).run_all([(TASK, 0)])


@pytest.mark.parametrize(
    ("last", "limits", "reason", "steps"),
    [
        (PromptTooLongError("5000 > 4096"), Limits(), StopReason.CONTEXT_OVERFLOW, 1),
        ("c d", Limits(max_steps=2), StopReason.STEP_LIMIT, 2),
        ("c d", Limits(max_tokens=5), StopReason.TOKEN_LIMIT, 2),
    ],
)
async def test_episode_limit_sets_stop_reason(last, limits, reason, steps):
    episode = await runner(saying("a b", last, "e f"), limits=limits).run(TASK)
    assert (episode.stop_reason, episode.reward, len(episode.steps)) == (reason, 0.0, steps)


async def test_episode_time_limit_cancels_request_and_scores():
    policy = SimpleNamespace(complete=AsyncMock(side_effect=forever))
    episode = await runner(lambda tokenizer: policy, limits=Limits(max_seconds=0.05)).run(TASK)
    assert (episode.stop_reason, episode.reward) == (StopReason.TIME_LIMIT, 0.0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_requests_have_affinity_seeds_and_token_limits():
    async def requests(sample: int = 0, **settings: Any) -> list[Sampling]:
        run = runner(saying("a b", "c d", ANSWER), **settings)
        await run.run(TASK, sample)
        return run.agent.policy.samplings  # type: ignore[attr-defined,no-any-return]

    first, other = await requests(), await requests(1)
    assert await requests() == first
    assert {sampling.affinity for sampling in first} == {"t1"}
    assert len({sampling.seed for sampling in [*first, *other]}) == 6
    assert {sampling.seed for sampling in await requests(sampling=Sampling())} == {None}
    # The last completion gets only the tokens that are left.
    sampling = Sampling(max_completion_length=98)
    limited = await requests(limits=Limits(max_tokens=100), sampling=sampling)
    assert [sampling.max_completion_length for sampling in limited] == [98, 97, 94]


class SlowPolicy(ScriptedPolicy):
    """Records the tasks in flight; the slow one waits until the others have ended."""

    def __init__(self, tokenizer: WordTokenizer) -> None:
        super().__init__(tokenizer, lambda prompt: ANSWER)
        self.in_flight: list[str | None] = []
        self.recorded: list[list[str | None]] = []
        self.others_ended = asyncio.Event()

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        self.in_flight.append(sampling.affinity)
        self.recorded.append([*self.in_flight])
        await (self.others_ended.wait() if sampling.affinity == "slow" else asyncio.sleep(0))
        self.in_flight.remove(sampling.affinity)
        return await super().complete(prompt_ids, sampling)


async def test_run_all_bounded_runs_groups_in_order_beside_a_slow_episode():
    # A group then reads the same chunk while the prefix cache holds it.
    run = runner(SlowPolicy, max_in_flight=5)
    policy: Any = run.agent.policy
    tasks = [replace(TASK, id=f"t{i}") for i in range(5)]
    pairs = [(replace(TASK, id="slow"), 0), *((task, i) for task in tasks for i in range(4))]
    ended: list[int] = []

    def on_end(index: int, episode: Episode) -> None:
        ended.append(index)
        if len(ended) == len(pairs) - 1:
            policy.others_ended.set()

    async with asyncio.timeout(10):
        episodes = await run.run_all(pairs, on_end)
    assert ended[-1] == 0
    assert [(e.task_id, e.sample) for e in episodes] == [(task.id, i) for task, i in pairs]
    assert max(len(names) for names in policy.recorded) == 5
    assert max(len({*names} - {"slow"}) for names in policy.recorded) <= 2


# Traces ---


LONG = Document("", "y " * 3000)
DATA = {"id": "t1", "questions": [{"text": "Who runs the [old] mill?", "golds": ["Ada"]}]}
TEXTS = [
    "<create_memory>Ann \u2028 lives \ud800</create_memory><read_memory>Ann</read_memory>",
    "\x1b[31mred <update_memory>Memory 1: Ann moved</update_memory>"
    "<delete_memory>7</delete_memory></create_memory>",
    ANSWER,
]


async def run_episode() -> Episode:
    task = replace(TASK, documents=(LONG, *TASK.documents[1:]))
    return await runner(saying(*TEXTS)).run(task, 3)


def rendered(path: Path, **options: object) -> str:
    console = Console(file=io.StringIO(), width=200, highlight=False)
    console.print(render_trace(read_trace(path), **options))  # type: ignore[arg-type]
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def test_render_trace_shows_whole_and_cut_episodes(tmp_path):
    path = write_trace(tmp_path / "trace.jsonl", await run_episode(), DATA)
    text = rendered(path)
    for expected in (
        "Who runs the [old] mill?",  # square brackets are not rich markup
        "update Memory 1: Ann \u2028 lives",
        "delete Memory 7: unknown_handle",
        "stray_close: </create_memory>",
        "stop_reason: answered",
    ):
        assert expected in text, expected
    for clutter in ("None", "()", "',)", ":\n", ": \n", "->  "):
        assert clutter not in text, clutter
    assert "answers: " in text
    assert text.count("reads_left") == 1, "two pieces of a prompt have this value"
    assert "\x1b" not in text  # escape sequences of a model do not reach the terminal
    assert text.count("y ") < 1000
    assert rendered(path, step=1).count("y") >= 3000
    assert "step 1, reading" not in rendered(path, step=2)
    episode = await run_episode()
    episode.steps[0].prompt = "THE WHOLE PROMPT"
    path = write_trace(path, episode, DATA)
    assert "THE WHOLE PROMPT" not in rendered(path)  # it would begin with the same words every time
    assert "THE WHOLE PROMPT" in rendered(path, step=1)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]) + lines[2][:40])
    trace = read_trace(path)
    assert (trace.complete, len(trace.episode.steps)) == (False, 1)
    assert "the file was cut off here" in rendered(path)


async def test_read_trace_returns_the_written_episode(tmp_path):
    written = await run_episode()
    path = write_trace(tmp_path / "deep" / "t.jsonl", written, DATA, {"layout": "prefix"})
    trace = read_trace(path)
    assert (trace.complete, trace.task, trace.config) == (True, DATA, {"layout": "prefix"})
    for step in written.steps:
        step.prompt_ids, step.logprobs = [], []
        step.seconds = round(step.seconds, 4)
    written.seconds = round(written.seconds, 4)
    assert trace.episode == written
