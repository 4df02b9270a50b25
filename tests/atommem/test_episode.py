"""Episodes from empty memory to the reward; and those that go on where they stopped."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atommem.actions import Action, Problem, ProblemReason
from atommem.envs.task import Document
from atommem.episode import Episode, Observation, Step, StopReason, add_sums, episode_sums, means
from atommem.errors import ConfigError, OutageError, PolicyError, PromptTooLongError, TraceError
from atommem.memory.log import MemoryView, Operation, Outcome
from atommem.policy.contract import Completion, Sampling, ScriptedPolicy
from atommem.rollout import Limits
from atommem.trace import read_trace, write_trace
from tests.atommem.sessions import (
    ANSWER,
    LONG_TASK,
    TASK,
    Waits,
    outcome,
    runner,
    saying,
    step_fields,
)
from tests.fakes import WordTokenizer


async def test_episode_runs_from_empty_memory_to_reward() -> None:
    create = "<create_memory>Ann lives in Rome</create_memory>"
    create += "<update_scratchpad>look for Ann</update_scratchpad>"
    run = runner(saying(create, "<read_memory>Ann</read_memory>", ANSWER), keep_prompts=True)
    episode = await run.run(TASK, sample=4)
    assert (episode.task_id, episode.sample, episode.answers) == ("t1", 4, ("Rome",))
    assert (episode.reward, episode.stop_reason, episode.error) == (1.0, StopReason.ANSWERED, None)
    first, second, third = episode.steps
    assert (first.view.scratchpad, second.view.scratchpad) == ("", "look for Ann")
    assert [item.text for item in third.view.retrieved] == ["Ann lives in Rome"]
    assert [step.store_size for step in episode.steps] == [1, 1, 1]
    assert [o.kind for o in first.operations] == ["create", "scratchpad"]
    prompts = run.agent.policy.prompts  # type: ignore[attr-defined]
    assert "Ann lives in Rome." in prompts[0]
    assert "Bob sings." in prompts[1]
    assert "Rome." not in prompts[2]
    assert "Memory 1: Ann lives in Rome" in prompts[2]
    for step, prompt in zip(episode.steps, prompts, strict=True):  # token in, token out
        assert run.agent.tokenizer.decode(step.prompt_ids, skip_special_tokens=False) == prompt
        assert len(step.token_ids) == len(step.logprobs)
        assert step.token_ids[-1] == 0


async def test_episode_outage_is_failed_without_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    episode = await runner(saying("x", OutageError("server gone"))).run(TASK)
    assert (episode.failed, episode.reward, episode.error) == (True, None, "server gone")
    assert len(episode.steps) == 1

    async def gone(self: object) -> None:
        raise OutageError("judge gone")

    run = runner(saying("x", "y", ANSWER))
    monkeypatch.setattr(type(run.environments()), "score", gone)
    episode = await run.run(TASK)
    assert (episode.failed, episode.reward, episode.error) == (True, None, "judge gone")
    assert len(episode.steps) == 3


@pytest.mark.parametrize(
    ("last", "limits", "reason", "steps"),
    [
        (PromptTooLongError("5000 > 4096"), Limits(), StopReason.CONTEXT_OVERFLOW, 1),
        ("c d", Limits(max_steps=2), StopReason.STEP_LIMIT, 2),
        ("c d", Limits(max_tokens=5), StopReason.TOKEN_LIMIT, 2),
    ],
)
async def test_episode_limit_sets_stop_reason(
    last: str | Exception, limits: Limits, reason: StopReason, steps: int
) -> None:
    episode = await runner(saying("a b", last, "e f"), limits=limits).run(TASK)
    assert (episode.stop_reason, episode.reward, len(episode.steps)) == (reason, 0.0, steps)


async def test_episode_time_limit_cancels_request_and_scores() -> None:
    run = runner(lambda tokenizer: Waits(tokenizer, ["x", "y"]), limits=Limits(max_seconds=0.05))
    episode = await run.run(TASK)
    assert (episode.stop_reason, episode.reward) == (StopReason.TIME_LIMIT, 0.0)
    assert run.agent.policy.cancelled  # type: ignore[attr-defined]


async def test_episode_hanging_environment_ends_at_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = runner(saying("x"), limits=Limits(max_seconds=0.05))
    monkeypatch.setattr(type(run.environments()), "step", lambda self, turn: asyncio.sleep(20))
    episode = await run.run(TASK)
    assert (episode.stop_reason, len(episode.steps)) == (StopReason.TIME_LIMIT, 1)


async def test_requests_have_affinity_seeds_and_token_limits() -> None:
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
    limited = await requests(limits=Limits(max_tokens=100), sampling=Sampling(max_tokens=98))
    assert [sampling.max_tokens for sampling in limited] == [98, 97, 94]


class TurnPolicy(ScriptedPolicy):
    """Answers at once, or (the slow task) after all others; records groups in flight."""

    def __init__(self, tokenizer: WordTokenizer) -> None:
        super().__init__(tokenizer, lambda prompt: ANSWER)
        self.others_done = asyncio.Event()
        self.in_flight: list[str | None] = []
        self.most_in_flight = self.most_groups = 0

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        self.in_flight.append(sampling.affinity)
        self.most_in_flight = max(self.most_in_flight, len(self.in_flight))
        self.most_groups = max(self.most_groups, len({*self.in_flight}))
        slow = str(sampling.affinity).startswith("slow")
        await (asyncio.wait_for(self.others_done.wait(), 5) if slow else asyncio.sleep(0))
        self.in_flight.remove(sampling.affinity)
        return await super().complete(prompt_ids, sampling)


async def test_run_all_slow_episode_delays_no_other() -> None:
    run = runner(TurnPolicy)
    slow = replace(TASK, id="slow")
    ended: list[int] = []

    def on_episode(index: int, episode: Episode) -> None:
        ended.append(index)
        if len(ended) == 9:
            run.agent.policy.others_done.set()  # type: ignore[attr-defined]

    episodes = await run.run_all([(slow, 0), *((TASK, i) for i in range(9))], on_episode)
    assert ended[-1] == 0
    assert [e.sample for e in episodes] == [0, *range(9)]
    assert {e.reward for e in episodes} == {1.0}


async def test_run_all_bounded_runs_groups_in_order() -> None:
    # A group then reads the same chunk while the prefix cache holds it.
    run = runner(TurnPolicy, max_in_flight=4)
    tasks = [replace(TASK, id=f"t{i}") for i in range(5)]
    await run.run_all([(task, sample) for task in tasks for sample in range(4)])
    policy: Any = run.agent.policy
    assert policy.most_in_flight == 4
    assert policy.most_groups <= 2


async def test_run_all_policy_error_is_raised() -> None:
    with pytest.raises(PolicyError, match="no such model"):
        await runner(saying(PolicyError("no such model"))).run_all([(TASK, 0)])
    with pytest.raises(ConfigError, match="max_in_flight=0"):
        runner(max_in_flight=0)
    with pytest.raises(ConfigError, match="max_seconds=0"):
        Limits(max_seconds=0)


async def test_runner_with_encode_threads_builds_the_same_prompts() -> None:
    prompts = []
    for count in (0, 1):
        run = runner(saying("x", "y", ANSWER), encode_threads=count, keep_prompts=True)
        prompts.append([step.prompt_ids for step in (await run.run(TASK)).steps])
    assert prompts[0] == prompts[1]
    assert all(prompts[0])


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(), StopReason.UNANSWERED),
        (Limits(max_steps=5), StopReason.STEP_LIMIT),
        (Limits(max_tokens=90), StopReason.TOKEN_LIMIT),
    ],
)
async def test_episode_resumes_from_any_step_without_new_requests(
    limits: Limits, reason: StopReason, tmp_path: Path
) -> None:
    whole = await runner(limits=limits).run(LONG_TASK, 4)
    assert whole.stop_reason is reason
    path = write_trace(tmp_path / "t", whole, {}, tokens=True)
    traced, kept = read_trace(path).episode.steps, whole.steps
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))
    assert [step_fields(step) for step in read_trace(path).episode.steps] == [
        step_fields(step) for step in kept[:3]
    ]
    for past in ([], traced[:1], kept[:4], traced[:-1], kept, traced):
        run = runner(limits=limits)
        again = await run.run(LONG_TASK, 4, past)
        assert outcome(again) == outcome(whole)
        assert len(run.agent.policy.asked) == len(kept) - len(past)  # type: ignore[attr-defined]
    # A chat server returns text only.
    bare = [replace(step, token_ids=[], logprobs=[]) for step in kept]
    again = await runner(limits=limits).run(LONG_TASK, 4, bare)
    assert (again.stop_reason, len(again.steps)) == (reason, len(bare))
    fork = await runner().run(LONG_TASK, 5, kept[:3])  # another sample of it, from step 3 on
    assert outcome(fork)[0][:3] == outcome(whole)[0][:3]
    assert outcome(fork)[0][3]["text"] != outcome(whole)[0][3]["text"]
    assert fork.sample == 5


async def test_episode_with_foreign_past_is_refused() -> None:
    whole = await runner().run(LONG_TASK)
    other = replace(LONG_TASK, documents=(Document("", "Another."), *LONG_TASK.documents[1:]))
    with pytest.raises(
        TraceError, match=r"step 1 of task 't1' \(chunk 1/6\) showed another observation"
    ):
        await runner().run(other, past=whole.steps[:3])
    with pytest.raises(TraceError, match="contradicts the log"):
        await runner().run(
            LONG_TASK,
            past=[whole.steps[0], replace(whole.steps[1], operations=whole.steps[3].operations)],
        )


def step(kinds: list[str], outcomes: list[tuple[str, Outcome]], problems: int, size: int) -> Step:
    actions = tuple(Action(kind) for kind in kinds)
    wrong = (Problem(ProblemReason.EMPTY, "x", 0, 1),) * problems
    operations = tuple(Operation(0, kind, outcome) for kind, outcome in outcomes)
    tokens: Any = ([1, 2, 3], [4, 5], [-0.1, -0.2])
    seen, view = Observation("reading"), MemoryView()
    return Step(
        0, seen, view, *tokens, "", "stop", actions, wrong, operations, size, prompt_tokens=3
    )


def test_means_equal_a_count_by_hand() -> None:
    creates = [("create", Outcome.APPLIED), ("create", Outcome.REJECTED)]
    reads = [("read", Outcome.APPLIED), ("delete", Outcome.UNKNOWN_HANDLE)]
    first = Episode("a", 0, reward=1.0, stop_reason=StopReason.ANSWERED, seconds=2.0)
    cut = step(["create", "create", "read"], creates, 0, 1)
    cut.finish_reason = "length"
    cut.problems = (Problem(ProblemReason.UNCLOSED_THINKING, "think", 0, 1),)
    read = step(["read", "delete"], reads, 0, 1)
    read.operations += (  # none of these is an action of the policy
        Operation(0, "read", before="a", after="b", actor="user"),
        Operation(0, "delete", entry_id=1, before="x", actor="retention:lru"),
        Operation(0, "retrieve", actor="memory"),
    )
    first.steps = [cut, read, step(["answer"], [], 0, 1)]
    first.metrics = {"em": 1.0, "f1": 1.0}
    second = Episode("a", 1, reward=0.0, stop_reason=StopReason.STEP_LIMIT, seconds=4.0)
    second.steps = [step([], [("read", Outcome.DISABLED)], 2, 0)]
    second.metrics = {"em": 0.0, "f1": 0.5}
    failed = Episode("b", 0, steps=[step(["create"], [], 0, 9)], stop_reason=StopReason.FAILED)
    whole = [first, second, failed]
    expected = {
        **dict.fromkeys((f"stop/{reason}" for reason in StopReason), 0.0),
        **{"episodes": 3, "failed": 1, "reward": 0.5, "reward_std": 0.5, "em": 0.5, "f1": 0.75},
        **{"steps": 2.0, "seconds": 3.0, "store_size": 0.5, "retrievals": 0.5},
        **{"tokens/prompt": 6.0, "tokens/completion": 4.0},
        **{"actions/create": 2 / 4, "actions/read": 2 / 4, "actions/delete": 1 / 4},
        **{"actions/update": 0.0, "actions/scratchpad": 0.0, "actions/answer": 1 / 4},
        **{"malformed": 3 / 4, "truncated": 1 / 4, "thinking_cut": 1 / 4},
        **{f"wasted/{name}": 1 / 4 for name in ("rejected", "unknown_handle", "disabled")},
        **{f"stop/{name}": 1 / 3 for name in ("answered", "step_limit", "failed")},
    }
    assert means(episode_sums(whole)) == pytest.approx(expected)
    parts = [episode_sums(whole[:1]), episode_sums(whole[1:]), episode_sums([])]
    assert means(add_sums(parts)) == pytest.approx(expected), "sums of parts give the whole"
    assert means(episode_sums([])) == {"episodes": 0, "failed": 0}
