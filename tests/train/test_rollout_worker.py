"""The rollout worker on written outcomes: staleness, weight versions, outages, errors."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from atommem.episode import Episode, StopReason
from atommem.errors import OutageError
from atommem.policy.contract import Completion, Sampling
from atommem.rollout import EpisodeRunner
from atommem.train.loops import rollout_worker as worker_module
from atommem.train.loops.rollout_worker import Group, RolloutWorker
from atommem.train.rollout.rollouts import TaskOrder
from tests.train.toys import (
    Closable,
    ToyTask,
    WrittenRunner,
    make_step,
    mixed_episode,
)


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
        self.runs: list[tuple[str, int, int | None]] = []

    using = EpisodeRunner.using

    async def run(self, task: ToyTask, sample: int = 0) -> Episode:
        before = sum(run[:2] == (task.id, sample) for run in self.runs)
        self.runs.append((task.id, sample, self.agent.sampling.seed))
        result = self.outcome(task.id, sample, before)
        if isinstance(result, OutageError):
            return Episode(task.id, sample, stop_reason=StopReason.FAILED, error=str(result))
        if isinstance(result, Exception):
            raise result
        await self.agent.policy.complete([sample], self.agent.sampling)
        return Episode(
            task.id,
            sample,
            [make_step([2, 3], [1])],
            reward=result,
            stop_reason=StopReason.ANSWERED,
        )


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


def right(*run: Any) -> float:
    return 1.0


def groups(worker: RolloutWorker, count: int) -> list[Group]:
    return [worker.rollout_buffer.get(timeout=10) for _ in range(count)]


def nothing_more(worker: RolloutWorker) -> None:
    with pytest.raises(queue.Empty):
        worker.rollout_buffer.get(timeout=0.05)


@pytest.mark.parametrize(
    ("groups_per_version", "max_staleness", "total", "first"), [(1, 0, 3, 0), (2, 1, 7, 3)]
)
def test_worker_with_a_staleness_runs_ahead_by_it(
    groups_per_version: int, max_staleness: int, total: int, first: int
) -> None:
    settings = {
        "groups_per_version": groups_per_version,
        "max_staleness": max_staleness,
        "total": total,
    }
    done, versions = first, first // groups_per_version
    with running_worker(FakeRunner(right), **settings, first=lambda: first) as worker:
        for version in (1, 2, 3):
            allowed = min(total, groups_per_version * (versions + version + max_staleness))
            found = groups(worker, allowed - done)
            assert [(group.index, group.versions) for group in found] == [
                (index, ([version], [version])) for index in range(done, allowed)
            ]
            nothing_more(worker)
            done = allowed
            worker.update_model_version(version + 1)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "RERUN_SECONDS", 0.001)


def test_worker_in_an_outage_waits_and_runs_again() -> None:
    runner = FakeRunner(
        lambda task, sample, before: OutageError("server gone") if before < 3 else 1.0
    )
    with running_worker(runner) as worker:
        (group,) = groups(worker, 1)
        assert [episode.reward for episode in group.episodes] == [1.0, 1.0]
        counted = [worker.metrics_queue.get() for _ in range(worker.metrics_queue.qsize())]
        assert sum(metrics.get("rollout/outages_total", 0) for metrics in counted) == 6


def test_worker_episode_with_its_own_outage_fails_without_a_score() -> None:
    runner = FakeRunner(
        lambda task, sample, before: OutageError("judge unreachable") if sample == 0 else 1.0
    )
    with running_worker(runner) as worker:
        (group,) = groups(worker, 1)
    assert [episode.reward for episode in group.episodes] == [None, 1.0]
    assert group.episodes[0].failed
    assert sum(run[1] == 0 for run in runner.runs) == worker_module.RERUNS + 1


def test_take_in_a_lasting_outage_raises_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "RERUN_SECONDS", 60.0)
    with running_worker(
        FakeRunner(lambda *run: OutageError("http://localhost:8000 refused"))
    ) as worker:
        worker.check_health(60.0)
        with pytest.raises(
            OutageError, match=r"no completion for .* s .* http://localhost:8000 refused"
        ):
            worker.take([0], 0.05, lambda: False)


def test_check_health_raises_the_error_of_the_thread() -> None:
    error = ZeroDivisionError("a bug")
    with running_worker(FakeRunner(lambda *run: error)) as worker:

        def watch() -> None:
            for _ in range(1000):
                worker.check_health(60.0)
                time.sleep(0.01)

        with pytest.raises(ZeroDivisionError) as caught:
            watch()
    assert caught.value is error
