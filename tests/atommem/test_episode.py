import asyncio
import threading
from dataclasses import replace

import pytest

from atommem.config import MemoryConfig
from atommem.environment import Score, environment_config, make_environments
from atommem.envs.task import Document, Question, Task
from atommem.episode import Episode
from atommem.episode_runner import EpisodeRunner, Limits
from atommem.errors import ConfigError, OutageError, PolicyError, PromptTooLongError
from atommem.observation import StopReason
from atommem.policy.contract import Completion, Sampling
from atommem.policy.scripted import ScriptedPolicy
from tests.fakes import ListPolicy, WordEmbedder, WordTokenizer, make_episode_runner

TASK = Task(
    "t1",
    (Question("Where does Ann live?", ("Rome",)),),
    (Document("", "Ann lives in Rome."), Document("", "Bob sings.")),
)
ANSWER = r"<final_answer>\boxed{Rome}</final_answer>"


def runner(texts: list[str | Exception], **settings: object) -> EpisodeRunner:
    tokenizer = WordTokenizer()
    arguments: dict[str, object] = {
        "policy": ListPolicy(tokenizer, texts),
        "embedder": WordEmbedder(),
        "tokenizer": tokenizer,
        "environments": make_environments(environment_config("longdoc", chunking="documents", max_reads=1), tokenizer),
        "memory": MemoryConfig(),
        "sampling": Sampling(seed=3),
        **settings,
    }
    return make_episode_runner(**arguments)


async def test_an_episode_from_empty_memory_to_the_reward() -> None:
    create = "<create_memory>Ann lives in Rome</create_memory><update_scratchpad>look for Ann</update_scratchpad>"
    run = runner([create, "<read_memory>Ann</read_memory>", ANSWER])
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


async def test_tokens_are_kept_as_they_were_sampled() -> None:
    run = runner(["x", "y", ANSWER], keep_prompts=True)
    episode = await run.run(TASK)
    for step, prompt in zip(episode.steps, run.agent.policy.prompts, strict=True):  # type: ignore[attr-defined]
        assert run.agent.tokenizer.decode(step.prompt_ids, skip_special_tokens=False) == prompt
        assert len(step.token_ids) == len(step.logprobs)
        assert step.token_ids[-1] == 0


async def test_an_outage_is_not_a_wrong_answer() -> None:
    episode = await runner(["x", OutageError("server gone")]).run(TASK)
    assert (episode.failed, episode.reward, episode.error) == (True, None, "server gone")
    assert len(episode.steps) == 1


@pytest.mark.parametrize(
    ("last", "limits", "reason", "steps"),
    [
        (PromptTooLongError("5000 > 4096"), Limits(), StopReason.CONTEXT_OVERFLOW, 1),
        ("c d", Limits(max_steps=2), StopReason.STEP_LIMIT, 2),
        ("c d", Limits(max_tokens=5), StopReason.TOKEN_LIMIT, 2),
    ],
)
async def test_what_ends_an_episode_has_a_name(
    last: str | Exception, limits: Limits, reason: StopReason, steps: int
) -> None:
    episode = await runner(["a b", last, "e f"], limits=limits).run(TASK)
    assert (episode.stop_reason, episode.reward, len(episode.steps)) == (reason, 0.0, steps)


class StuckPolicy(ListPolicy):
    """Its last completion never comes; keeps whether it was cancelled."""

    cancelled = False

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        if self.texts:
            return await super().complete(prompt_ids, sampling)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        raise AssertionError


async def test_time_that_is_up_cancels_the_request_and_scores_what_there_is() -> None:
    run = runner([], limits=Limits(max_seconds=0.05))
    run.agent.policy = policy = StuckPolicy(run.agent.tokenizer, ["x", "y"])  # type: ignore[arg-type]
    episode = await run.run(TASK)
    assert (episode.stop_reason, episode.reward, len(episode.steps)) == (StopReason.TIME_LIMIT, 0.0, 2)
    assert policy.cancelled


def test_limits_that_are_not_positive_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_seconds of an episode is 0"):
        Limits(max_seconds=0)


async def test_requests_of_a_task_say_that_they_belong_together() -> None:
    run = runner(["x", "y", ANSWER])
    await run.run(TASK)
    assert {s.affinity for s in run.agent.policy.samplings} == {"t1"}  # type: ignore[attr-defined]


async def test_the_last_completion_gets_only_the_tokens_that_are_left() -> None:
    run = runner(["a b", "c d", ANSWER], limits=Limits(max_tokens=100), sampling=Sampling(max_tokens=98))
    await run.run(TASK)
    assert [s.max_tokens for s in run.agent.policy.samplings] == [98, 97, 94]  # type: ignore[attr-defined]


async def test_every_request_has_its_own_seed_and_the_same_one_in_a_rerun() -> None:
    async def seeds(sample: int) -> list[int]:
        run = runner(["x", "y", ANSWER])
        await run.run(TASK, sample)
        return [s.seed for s in run.agent.policy.samplings]  # type: ignore[attr-defined]

    first, again, other = await seeds(0), await seeds(0), await seeds(1)
    assert first == again
    assert len({*first, *other}) == 6
    run = runner(["x", "y", ANSWER], sampling=Sampling())
    await run.run(TASK)
    assert {s.seed for s in run.agent.policy.samplings} == {None}  # type: ignore[attr-defined]


class TurnPolicy:
    """Answers at once, or (for the slow task) only after all others have ended."""

    def __init__(self, tokenizer: WordTokenizer) -> None:
        self.tokenizer = tokenizer
        self.others_done = asyncio.Event()
        self.in_flight = self.most_in_flight = 0

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        prompt = self.tokenizer.decode(prompt_ids, skip_special_tokens=False)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await (asyncio.wait_for(self.others_done.wait(), 5) if "slow" in prompt else asyncio.sleep(0))
        self.in_flight -= 1
        return Completion([0], [0.0], ANSWER, "stop")

    async def close(self) -> None:
        return None


async def test_no_episode_waits_for_another() -> None:
    run = runner([])
    run.agent.policy = policy = TurnPolicy(run.agent.tokenizer)  # type: ignore[arg-type]
    slow = replace(TASK, id="s", questions=(Question("slow?", ("Rome",)),))
    ended: list[int] = []

    def on_episode(index: int, episode: Episode) -> None:
        ended.append(index)
        if len(ended) == 9:
            policy.others_done.set()

    episodes = await run.run_all([(slow, 0), *((TASK, i) for i in range(9))], on_episode)
    assert ended[-1] == 0
    assert [e.sample for e in episodes] == [0, *range(9)]
    assert {e.reward for e in episodes} == {1.0}


async def test_in_flight_is_bounded() -> None:
    run = runner([], max_in_flight=3)
    run.agent.policy = policy = TurnPolicy(run.agent.tokenizer)  # type: ignore[arg-type]
    await run.run_all([(TASK, i) for i in range(12)])
    assert policy.most_in_flight == 3
    with pytest.raises(ConfigError, match="max_in_flight is 0"):
        runner([], max_in_flight=0)


async def test_groups_go_through_a_bounded_run_one_after_the_other() -> None:
    """The episodes of a group read the same chunk at about the same time: the prefix cache still holds it."""
    run = runner([], max_in_flight=4)
    run.agent.policy = policy = TurnPolicy(run.agent.tokenizer)  # type: ignore[arg-type]
    tasks = [replace(TASK, id=f"t{i}") for i in range(5)]
    open_groups: dict[str, int] = {}
    seen: list[int] = []

    async def complete(prompt_ids: list[int], sampling: Sampling) -> Completion:
        assert sampling.affinity is not None
        open_groups[sampling.affinity] = open_groups.get(sampling.affinity, 0) + 1
        seen.append(len(open_groups))
        completion = await TurnPolicy.complete(policy, prompt_ids, sampling)
        open_groups[sampling.affinity] -= 1
        if not open_groups[sampling.affinity]:
            del open_groups[sampling.affinity]
        return completion

    policy.complete = complete  # type: ignore[method-assign]
    await run.run_all([(task, sample) for task in tasks for sample in range(4)])
    assert max(seen) <= 2


async def test_a_refused_request_is_raised_not_scored() -> None:
    with pytest.raises(PolicyError, match="no such model"):
        await runner([PolicyError("no such model")]).run_all([(TASK, 0)])


async def test_a_judge_that_is_gone_fails_the_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unscored:
        def __init__(self, inner: object) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

        async def score(self) -> Score:
            raise OutageError("judge gone")

    run = runner(["x", "y", ANSWER])
    make = type(run.environments).__call__
    monkeypatch.setattr(type(run.environments), "__call__", lambda self: Unscored(make(self)))
    episode = await run.run(TASK)
    assert (episode.failed, episode.error, len(episode.steps)) == (True, "judge gone", 3)


async def test_prompts_that_threads_encode_are_the_same() -> None:
    class Noting(WordTokenizer):
        def __init__(self) -> None:
            super().__init__()
            self.threads: list[str] = []

        def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
            self.threads.append(threading.current_thread().name)
            return super().encode(text, add_special_tokens=add_special_tokens)

    found = []
    for threads in (0, 1):
        tokenizer = Noting()
        run = runner(["x", "y", ANSWER], tokenizer=tokenizer, encode_threads=threads)
        run.agent.policy.tokenizer = tokenizer  # type: ignore[attr-defined]
        episode = await run.run(TASK)
        found.append([step.prompt_ids for step in episode.steps])
        assert sum(name.startswith("atommem-prompts") for name in tokenizer.threads) == 3 * threads
    assert found[0] == found[1]


async def test_a_scripted_policy_is_cut_as_a_model_is() -> None:
    run = runner([], sampling=Sampling(max_tokens=1))
    run.agent.policy = ScriptedPolicy(run.agent.tokenizer, lambda prompt: "one two three")
    (step, *_) = (await run.run(TASK)).steps
    assert (step.text, step.finish_reason) == ("one", "length")
