"""An episode runner whose model calls and outcomes are written down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from atommem.activity import ActivityClock
from atommem.episode import Episode
from atommem.episode_runner import EpisodeRunner
from atommem.errors import OutageError
from atommem.observation import StopReason
from atommem.policy.contract import Completion, Sampling
from atommem.train.loops.asynchronous.worker import LoopThread, RolloutWorker
from atommem.train.rollout.task_order import TaskOrder
from tests.train.toys import Closable, ToyTask, make_step


class FakePolicy(Closable):
    """Answers with one token; `calls` are the prompts."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.closed = False

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        self.calls.append(prompt_ids)
        await asyncio.sleep(0)
        return Completion([1], [-0.5], "w1", "stop")

    async def close(self) -> None:
        self.closed = True


class FakeRunner:
    """An `EpisodeRunner` of one step an episode.

    Args:
        outcome: Given task id, sample and how often the episode was run before: the reward, or an exception to raise.
            An `OutageError` makes a failed episode of it, as the real loop does.
    """

    def __init__(self, outcome: Callable[[str, int, int], float | Exception]) -> None:
        self.agent: Any = SimpleNamespace(
            policy=FakePolicy(), embedder=Closable(), sampling=Sampling(temperature=1.0), activity=ActivityClock()
        )
        self.outcome = outcome
        self.runs: list[tuple[str, int, int | None]] = []

    using = EpisodeRunner.using

    async def run(self, task: ToyTask, sample: int = 0) -> Episode:
        before = sum(run[:2] == (task.id, sample) for run in self.runs)
        self.runs.append((task.id, sample, self.agent.sampling.seed))
        result = self.outcome(task.id, sample, before)
        if isinstance(result, OutageError):
            return Episode(task.id, sample, error=str(result))
        if isinstance(result, Exception):
            raise result
        await self.agent.policy.complete([sample], self.agent.sampling)
        return Episode(task.id, sample, [make_step([2, 3], [1])], reward=result, stop_reason=StopReason.ANSWERED)


@contextmanager
def running_worker(runner: FakeRunner, **settings: Any) -> Iterator[RolloutWorker]:
    """A started worker with weights of version 1: groups of 2, one group a version, 3 of them, no staleness."""
    defaults = {"group_size": 2, "groups_per_version": 1, "max_staleness": 0, "total": 3}
    worker = RolloutWorker(
        loop=LoopThread(),
        runner=runner,  # type: ignore[arg-type]
        tasks=[ToyTask(f"t{index}") for index in range(8)],
        order=TaskOrder(8, 1, shuffle=False, seed=0),
        **{**defaults, **settings},
    )
    worker.update_model_version(1)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()
