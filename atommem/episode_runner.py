"""The one loop: training, evaluation, baselines with a memory and the demo run episodes with it."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from atommem.actions import MEMORY_KINDS
from atommem.environment import Environment, EnvironmentFactory, Score, StepResult, Turn
from atommem.episode import Episode, Step
from atommem.errors import ConfigError, OutageError, PromptTooLongError, TraceError
from atommem.memory.log import Snapshot
from atommem.observation import StopReason
from atommem.session import Agent, Session, StepTimeoutError, with_deadline
from atommem.session_state import SessionState

Result = TypeVar("Result")

Kept = dict[tuple[str, int], Episode]
"""Episodes by task id and sample."""


@dataclass(frozen=True)
class Limits:
    """Limits of an episode beyond those of its environment; None is unlimited.

    Attributes:
        max_steps: The number of steps.
        max_tokens: Sampled tokens of all steps together.
        max_seconds: Wall-clock time; a completion or environment step in progress is cancelled.

    Raises:
        ConfigError: A limit is not positive.
    """

    max_steps: int | None = None
    max_tokens: int | None = None
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_steps", "max_tokens", "max_seconds"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name}={value}: give a positive number, or leave it unset.")


class EpisodeRunner:
    """Run episodes concurrently; each waits only for its own completions and embeddings.

    Args:
        agent: The policy with its embedder, environment and settings.
        limits: Of one episode.
        max_in_flight: Most episodes at a time, or a semaphore that runners share; None is no limit.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        limits: Limits | None = None,
        max_in_flight: int | asyncio.Semaphore | None = None,
    ) -> None:
        if isinstance(max_in_flight, int) and max_in_flight < 1:
            raise ConfigError(f"max_in_flight={max_in_flight}: give at least 1, or leave it unset.")
        self.agent = agent
        self.limits = limits or Limits()
        self.max_in_flight = max_in_flight

    @property
    def environments(self) -> EnvironmentFactory:
        """The agent's environments."""
        return self.agent.environments

    def using(self, **changes: Any) -> EpisodeRunner:
        """Return a runner whose agent has another `policy`, `sampling`, ..."""
        runner = copy.copy(self)
        runner.agent = copy.copy(self.agent)
        for name, value in changes.items():
            setattr(runner.agent, name, value)
        return runner

    async def run(
        self, task: Any, sample: int = 0, past: Sequence[Step] = (), kept: Kept | None = None
    ) -> Episode:
        """Run one episode.

        An outage does not raise: it ends the episode with stop reason FAILED and no reward.

        Args:
            task: Has an ``id``, and is understood by the environment.
            sample: The index of the episode among those of its task.
            past: The first steps of the episode, from a trace. The memory follows from their
                operations, and only the environment is driven through them. The first steps of a
                finished episode fork it.
            kept: Gets the episode when it begins, so that it can be continued if this is cancelled:
                an episode in progress is continued, and one that has ended is returned.

        Raises:
            TraceError: `past` has a gap, or the environment shows other observations.
        """
        key = (task.id, sample)
        if kept is not None:
            if key in kept and not kept[key].in_progress:
                return kept[key]
            past = kept[key].steps if key in kept else past
        episode = Episode(task_id=task.id, sample=sample, steps=list(past))
        if kept is not None:
            kept[key] = episode
        spent = sum(step.seconds for step in past)
        started = time.perf_counter()
        environments = self.agent.environments
        try:
            await environments.prepare(task)
            environment = environments()
            stop_reason = await self._steps(episode, environment, task, spent)
            set_score(episode, await environment.score())
        except OutageError as error:
            stop_reason, episode.error = StopReason.FAILED, str(error)
        episode.seconds = spent + time.perf_counter() - started
        episode.stop_reason = stop_reason
        return episode

    async def run_all(
        self,
        jobs: Sequence[tuple[Any, int]],
        on_episode: Callable[[int, Episode], None] | None = None,
        stop: Callable[[], bool] | None = None,
        kept: Kept | None = None,
    ) -> list[Episode]:
        """Run one episode for each ``(task, sample)`` and return them in this order.

        Args:
            jobs: Tasks with sample indices.
            on_episode: Called with the index of the job and the episode when one ends.
            stop: Called before an episode starts; if true, the episode is left out.
            kept: As for `run`.

        Raises:
            Exception: Any other than an outage; it cancels the other episodes.
        """
        run = self.run if kept is None else partial(self.run, kept=kept)
        return await run_jobs(run, jobs, on_episode, self.max_in_flight, stop)

    async def _steps(
        self, episode: Episode, environment: Environment, task: Any, spent: float
    ) -> StopReason:
        limits = self.limits
        loop = asyncio.get_running_loop()
        deadline = None if limits.max_seconds is None else loop.time() + limits.max_seconds - spent

        async def advance(step: Step) -> StepResult:
            turn = Turn(step.text, step.actions, step.problems, step.operations, deadline)
            return await with_deadline(environment.step(turn), deadline)

        try:
            session = await self._session(episode)
            observation = await with_deadline(environment.reset(task), deadline)
            for step in list(episode.steps):
                if step.observation != observation:
                    raise TraceError(
                        f"step {step.index + 1} of task {episode.task_id!r} "
                        f"({step.observation.label}) showed another observation. Continue with the "
                        "same task, environment and settings."
                    )
                result = await advance(step)
                if result.observation is None:
                    return result.reason or StopReason.ANSWERED
                observation = result.observation
            while True:
                if limits.max_steps is not None and session.turns >= limits.max_steps:
                    return StopReason.STEP_LIMIT
                room = None if limits.max_tokens is None else limits.max_tokens - session.sampled
                if room is not None and room <= 0:
                    return StopReason.TOKEN_LIMIT
                if deadline is not None and loop.time() >= deadline:
                    return StopReason.TIME_LIMIT
                step = await session.turn(
                    observation,
                    affinity=episode.task_id,
                    max_tokens=room,
                    deadline=deadline,
                    steps=episode.steps,
                )
                started = time.perf_counter()
                result = await advance(step)
                step.seconds += time.perf_counter() - started
                if result.observation is None:
                    return result.reason or StopReason.ANSWERED
                observation = result.observation
        except StepTimeoutError:
            return StopReason.TIME_LIMIT
        except PromptTooLongError:
            return StopReason.CONTEXT_OVERFLOW

    async def _session(self, episode: Episode) -> Session:
        """Return the session of an episode after its past steps."""
        key, past = f"{episode.task_id}/{episode.sample}", episode.steps
        if not past:
            return Session(self.agent, key)
        indices = [step.index for step in past]
        if indices != list(range(len(past))):
            raise TraceError(
                f"the past of task {episode.task_id!r} has the steps {indices}: give all steps "
                "from 0 on, in order."
            )
        sampled = sum(step.completion_tokens for step in past)
        log = tuple(operation for step in past for operation in step.operations)
        state = SessionState(key, len(past), sampled, Snapshot(self.agent.embedder.id), log)
        session = await Session.restore(self.agent, state)
        last = past[-1]
        if not last.operations and any(action.kind in MEMORY_KINDS for action in last.actions):
            # Every memory action has an operation, so an outage prevented these.
            past[-1] = last = replace(last)
            await session.apply(last)
        return session


def set_score(episode: Episode, score: Score) -> None:
    """Copy a score into its episode."""
    episode.reward, episode.answers = score.reward, score.answers
    episode.metrics, episode.question_metrics = dict(score.metrics), score.question_metrics
    episode.question_notes = score.question_notes


async def run_jobs(
    run: Callable[[Any, int], Awaitable[Result]],
    jobs: Sequence[tuple[Any, int]],
    on_episode: Callable[[int, Result], None] | None = None,
    max_in_flight: int | asyncio.Semaphore | None = None,
    stop: Callable[[], bool] | None = None,
) -> list[Result]:
    """Run `run(task, sample)` for all jobs; see `EpisodeRunner.run_all`."""
    slots = max_in_flight
    if not isinstance(slots, asyncio.Semaphore):
        slots = asyncio.Semaphore(slots or max(1, len(jobs)))
    episodes: list[Result | None] = [None] * len(jobs)

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
        # The first failure is the cause; the others only repeat it.
        raise failures.exceptions[0] from None
    return [episode for episode in episodes if episode is not None]
