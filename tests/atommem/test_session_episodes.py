"""Episodes that go on where they stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atommem.embedding.embedder import TextKind, Vectors
from atommem.envs.task import Document
from atommem.episode_runner import Limits
from atommem.errors import OutageError, TraceError
from atommem.observation import StopReason
from atommem.trace import read_trace, write_trace
from tests.atommem.sessions import TASK, outcome, runner, told


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
    for count in (0, 1, 4, len(past)):
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
    for number in (0, 3, len(whole.steps) - 1):
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
    for count in (1, len(whole.steps) - 1, len(whole.steps)):
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
    with pytest.raises(TraceError, match=r"step 1 of task 't1' \(chunk 1/6\) showed something else then"):
        await runner().run(other, past=whole.steps[:3])
    with pytest.raises(TraceError, match="does not fit"):
        await runner().run(TASK, past=[whole.steps[0], replace(whole.steps[1], operations=whole.steps[3].operations)])


async def test_the_token_limit_counts_what_a_chat_server_sampled_before() -> None:
    limits = Limits(max_tokens=90)
    whole = await runner(limits=limits).run(TASK)
    past = [replace(step, token_ids=[], logprobs=[]) for step in whole.steps]  # a chat server returns text only
    again = await runner(limits=limits).run(TASK, past=past)
    assert (again.stop_reason, len(again.steps)) == (StopReason.TOKEN_LIMIT, len(past))
