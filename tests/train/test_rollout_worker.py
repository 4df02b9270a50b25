"""The rollout worker on written outcomes: staleness, weight versions, outages, errors."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from atommem.episode import Episode, StopReason
from atommem.errors import OutageError
from atommem.policy.contract import Completion, Sampling
from atommem.rollout import EpisodeRunner
from atommem.train.loops import rollout_worker as worker_module
from atommem.train.loops.rollout_worker import Group, RolloutWorker
from atommem.train.rollout.rollouts import TaskOrder
from tests.serve.servers import until
from tests.train.toys import Closable, ToyTask, WrittenRunner, mixed_episode


class FakePolicy(Closable):
    """Answers with one token."""

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        await asyncio.sleep(0)
        return Completion([1], [-0.5], "w1", "stop")


class FakeRunner(WrittenRunner):
    """An `EpisodeRunner` of one step an episode.

    Args:
        outcome: Of task id, sample and earlier runs of it: the reward, or an exception. An
            `OutageError` makes a failed episode, as in the real loop.
    """

    def __init__(self, outcome: Callable[[str, int, int], float | Exception]) -> None:
        super().__init__(mixed_episode)
        self.agent.policy = FakePolicy()
        self.outcome = outcome
        self.runs: list[tuple[str, int]] = []

    copy = EpisodeRunner.copy

    async def run(self, task: ToyTask, sample: int = 0) -> Episode:
        before = self.runs.count((task.id, sample))
        self.runs.append((task.id, sample))
        result = self.outcome(task.id, sample, before)
        if isinstance(result, OutageError):
            return Episode(task.id, sample, stop_reason=StopReason.FAILED, error=str(result))
        if isinstance(result, Exception):
            raise result
        await self.agent.policy.complete([sample], self.agent.sampling)
        return Episode(task.id, sample, reward=result, stop_reason=StopReason.ANSWERED)


@contextmanager
def running_worker(runner: FakeRunner, **settings: Any) -> Iterator[RolloutWorker]:
    """Start a worker with weights of version 1: 3 groups of 2, one a version, no staleness."""
    defaults = {"group_size": 2, "groups_per_version": 1, "max_staleness": 0, "total": 3}
    worker = RolloutWorker(
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


def groups(worker: RolloutWorker, count: int) -> list[Group]:
    return [worker.rollout_buffer.get(timeout=10) for _ in range(count)]


@pytest.mark.parametrize(
    ("staleness", "first", "ends"), [(0, 0, (2, 4, 6)), (1, 3, (6, 8, 9))], ids=["0", "resumed"]
)
def test_worker_with_a_staleness_runs_ahead_by_it(
    staleness: int, first: int, ends: tuple[int, ...]
) -> None:
    """Two groups a version, nine in all."""
    settings = {"groups_per_version": 2, "max_staleness": staleness, "total": 9}
    with running_worker(FakeRunner(lambda *run: 1.0), **settings, first=lambda: first) as worker:
        for version, (start, end) in enumerate(pairwise((first, *ends)), start=1):
            found = groups(worker, end - start)
            assert [group.index for group in found] == [*range(start, end)]
            assert all(group.versions == ([version], [version]) for group in found)
            with pytest.raises(queue.Empty):
                worker.rollout_buffer.get(timeout=0.05)
            worker.update_model_version(version + 1)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "RERUN_SECONDS", 0.001)


def test_worker_episode_with_its_own_outage_fails_without_a_score() -> None:
    runner = FakeRunner(
        lambda task, sample, before: OutageError("judge unreachable") if sample == 0 else 1.0
    )
    with running_worker(runner) as worker:
        (group,) = groups(worker, 1)
    assert [episode.reward for episode in group.episodes] == [None, 1.0]
    assert group.episodes[0].failed
    assert runner.runs.count((group.episodes[0].task_id, 0)) == worker_module.RERUNS + 1


def test_take_in_a_lasting_outage_raises_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "RERUN_SECONDS", 60.0)
    runner = FakeRunner(lambda *run: OutageError("http://localhost:8000 refused"))
    with (
        running_worker(runner) as worker,
        pytest.raises(
            OutageError, match=r"no completion for .* s .* http://localhost:8000 refused"
        ),
    ):
        worker.take([0], 0.05, lambda: False)


def test_check_health_raises_the_error_of_the_thread() -> None:
    with (
        running_worker(FakeRunner(lambda *run: ZeroDivisionError("a bug"))) as worker,
        pytest.raises(ZeroDivisionError, match="a bug"),
    ):
        until(lambda: worker.check_health(60.0))
