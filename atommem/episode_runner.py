"""The one loop: training, evaluation, the baselines with a memory, the demo and serving all run it."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from atommem.activity import ActivityClock
from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.embedding.embedder import Embedder
from atommem.environment import Environment, Score
from atommem.episode import Episode, MemoryView, Observation, Step, StopReason
from atommem.errors import ConfigError, OutageError, PromptTooLongError
from atommem.memory.working import Memory
from atommem.policy.contract import Policy, Sampling
from atommem.prompts import PromptBuilder
from atommem.tokens import Tokenizer


@dataclass(frozen=True)
class Limits:
    """Bounds of one episode beyond those that the environment sets.

    Attributes:
        max_steps: Most steps; unset leaves it to the environment, whose streams are finite.
        max_tokens: Most sampled tokens in all steps together.
        max_seconds: Longest wall-clock time. A completion that is being sampled then is given up.

    Raises:
        ConfigError: A bound is not positive.
    """

    max_steps: int | None = None
    max_tokens: int | None = None
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_steps", "max_tokens", "max_seconds"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name} of an episode is {value}: give a positive number, or leave it unset.")


class EpisodeRunner:
    """Runs episodes, each a coroutine that waits for nothing but its own completion and embeddings.

    Args:
        policy: What completes prompts; shared, it batches across episodes.
        embedder: Shared likewise.
        tokenizer: The policy's.
        environment_factory: Makes a fresh environment for every episode.
        prepare: Awaited with the task before its environment is reset: for work that takes a while.
        encode_threads: How many threads encode prompts, which fast tokenizers do in parallel to the event loop. For
            servers; a policy in this process finds larger batches where prompts do not come one after the other (0).
        memory: Dialect, layout and limits of the memory.
        sampling: How completions are sampled. With a seed, every request gets its own derived one.
        limits: Bounds of one episode.
        max_in_flight: Most episodes at the same time, or a semaphore that several runners share; unset runs all at
            once.
        chat_template_kwargs: Passed to the tokenizer's chat template (``enable_thinking`` of Qwen3).

    Attributes:
        activity: Seconds in which at least one episode waited for a completion (``generate``) or for
            embeddings (``embed``), and seconds of searching stores (``retrieve``).
    """

    def __init__(
        self,
        *,
        policy: Policy,
        embedder: Embedder,
        tokenizer: Tokenizer,
        environment_factory: Callable[[], Environment],
        memory: MemoryConfig,
        sampling: Sampling,
        limits: Limits | None = None,
        max_in_flight: int | asyncio.Semaphore | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        prepare: Callable[[Any], Awaitable[object]] | None = None,
        encode_threads: int = 0,
    ) -> None:
        if isinstance(max_in_flight, int) and max_in_flight < 1:
            raise ConfigError(f"max_in_flight is {max_in_flight}: give at least 1, or leave it unset.")
        self.policy = policy
        self.embedder = embedder
        self.tokenizer = tokenizer
        self.environment_factory = environment_factory
        self.prepare = prepare
        self._threads: ThreadPoolExecutor | None = None
        if encode_threads:
            # The first call may change settings of a fast tokenizer, which must not happen while it is in use.
            tokenizer.encode("", add_special_tokens=False)
            self._threads = ThreadPoolExecutor(encode_threads, thread_name_prefix="atommem-prompts")
        self.memory = memory
        self.sampling = sampling
        self.limits = limits or Limits()
        self.max_in_flight = max_in_flight
        self.activity = ActivityClock()
        self.dialect = get_dialect(memory.dialect, memory.templates)
        self.prompts = PromptBuilder(tokenizer, self.dialect, memory, chat_template_kwargs)

    async def run(self, task: Any, sample: int = 0) -> Episode:
        """Run one episode of `task` (anything with an ``id`` that the environment understands).

        `sample` tells the episodes of one task apart. An outage does not raise: it ends the episode
        with stop reason FAILED and no reward; the steps until then are kept.
        """
        episode = Episode(task_id=task.id, sample=sample)
        started = time.perf_counter()
        try:
            if self.prepare is not None:
                await self.prepare(task)
            environment = self.environment_factory()
            episode.stop_reason = await self._steps(episode, environment, task)
            set_score(episode, await environment.score())
        except OutageError as error:
            episode.stop_reason, episode.error = StopReason.FAILED, str(error)
        episode.seconds = time.perf_counter() - started
        return episode

    async def run_all(
        self,
        jobs: Sequence[tuple[Any, int]],
        on_episode: Callable[[int, Episode], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> list[Episode]:
        """Run one episode per ``(task, sample)``, free-running, and return them in the order of `jobs`.

        `on_episode(index, episode)` is called as each one ends. `stop()` is asked before each one starts: where it
        is true, that one is left out. An exception that is no outage (a bug, a refused request) cancels the other
        episodes and is raised.
        """
        return await run_jobs(self.run, jobs, on_episode, self.max_in_flight, stop)

    async def _steps(self, episode: Episode, environment: Environment, task: Any) -> StopReason:
        marker = self.dialect.templates.cut_marker
        memory = Memory(self.embedder, self.tokenizer, self.memory, marker, self.activity)
        observation: Observation | None = environment.reset(task)
        sampled = 0
        limit = self.limits.max_seconds
        ends = None if limit is None else asyncio.get_running_loop().time() + limit
        while observation is not None:
            index = len(episode.steps)
            if self.limits.max_steps is not None and index >= self.limits.max_steps:
                return StopReason.STEP_LIMIT
            if self.limits.max_tokens is not None and sampled >= self.limits.max_tokens:
                return StopReason.TOKEN_LIMIT
            started = time.perf_counter()
            view = memory.view()
            prompt_ids = await self._prompt(observation, view)
            try:
                async with asyncio.timeout_at(ends) as clock:
                    with self.activity.busy("generate"):
                        completion = await self.policy.complete(prompt_ids, self._sampling_of(episode, index, sampled))
            except TimeoutError:
                if not clock.expired():  # the policy's own
                    raise
                return StopReason.TIME_LIMIT
            except PromptTooLongError:
                return StopReason.CONTEXT_OVERFLOW
            sampled += len(completion.token_ids)
            parsed = self.dialect.parse(completion.text, observation.phase)
            step = Step(
                index=index,
                observation=observation,
                view=view,
                prompt_ids=prompt_ids,
                token_ids=completion.token_ids,
                logprobs=completion.logprobs,
                text=completion.text,
                finish_reason=completion.finish_reason,
                actions=parsed.actions,
                problems=parsed.problems,
                operations=(),
                store_size=len(memory.store),
            )
            # Before its actions are applied: should an outage end the episode there, its tokens have been spent.
            episode.steps.append(step)
            step.operations = await memory.apply(parsed.actions, index)
            step.store_size = len(memory.store)
            result = await environment.step(parsed.actions)
            step.seconds = time.perf_counter() - started
            if result.done:
                return result.reason or StopReason.ANSWERED
            observation = result.observation
        return StopReason.UNANSWERED

    async def _prompt(self, observation: Observation, view: MemoryView) -> list[int]:
        if self._threads is None:
            return self.prompts.build(observation, view)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self.prompts.build, observation, view)

    def _sampling_of(self, episode: Episode, index: int, sampled: int) -> Sampling:
        sampling = self.sampling
        if self.limits.max_tokens is not None:
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, self.limits.max_tokens - sampled))
        return request_sampling(sampling, episode, index)


def set_score(episode: Episode, score: Score) -> None:
    """Note in `episode` how it was scored."""
    episode.reward, episode.answers = score.reward, score.answers
    episode.metrics, episode.question_metrics = dict(score.metrics), score.question_metrics
    episode.question_notes = score.question_notes


def request_sampling(sampling: Sampling, episode: Episode, index: int) -> Sampling:
    """How request number `index` of an episode is sampled: with a seed of its own, near its task's other requests."""
    sampling = replace(sampling, affinity=episode.task_id)
    if sampling.seed is None:
        return sampling
    key = f"{sampling.seed}/{episode.task_id}/{episode.sample}/{index}".encode("utf-8", "surrogatepass")
    return replace(sampling, seed=int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), "big") >> 1)


async def run_jobs(
    run: Callable[[Any, int], Awaitable[Episode]],
    jobs: Sequence[tuple[Any, int]],
    on_episode: Callable[[int, Episode], None] | None = None,
    max_in_flight: int | asyncio.Semaphore | None = None,
    stop: Callable[[], bool] | None = None,
) -> list[Episode]:
    """`EpisodeRunner.run_all` for any `run(task, sample)`: what runs episodes in another way runs them alike."""
    slots = max_in_flight
    if not isinstance(slots, asyncio.Semaphore):
        slots = asyncio.Semaphore(slots or max(1, len(jobs)))
    episodes: list[Episode | None] = [None] * len(jobs)

    async def one(index: int, task: Any, sample: int) -> None:
        async with slots:
            if stop is not None and stop():
                return
            episode = await run(task, sample)
        episodes[index] = episode
        if on_episode is not None:
            on_episode(index, episode)

    try:
        async with asyncio.TaskGroup() as group:
            for index, (task, sample) in enumerate(jobs):
                group.create_task(one(index, task, sample))
    except BaseExceptionGroup as failures:
        # The first failure is the cause; the rest of the group only repeats it.
        raise failures.exceptions[0] from None
    return [episode for episode in episodes if episode is not None]
