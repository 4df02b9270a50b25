"""Tasks and seeds of groups; replaced and carried groups."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from trl.trainer.utils import RepeatSampler

from atommem.episode import Episode
from atommem.rollout import EpisodeRunner
from atommem.train.rollout.groups import RolloutGroup, run_groups
from atommem.train.rollout.rollouts import TaskOrder
from tests.train.toys import ToyTask

TASKS = [ToyTask(f"t{index}") for index in range(10)]


class TimedRunner(EpisodeRunner):
    """Episodes of t0 wait for `let_go`; only t0 and t3 have variance."""

    def __init__(self, max_in_flight: int | None = None) -> None:
        self.max_in_flight = max_in_flight
        self.agent = None  # type: ignore[assignment]
        self.started: list[str] = []
        self.let_go = asyncio.Event()
        self.running = self.most = 0

    async def run(self, task: Any, sample: int = 0, past: Any = (), kept: Any = None) -> Episode:
        """As described."""
        self.started.append(task.id)
        self.running += 1
        self.most = max(self.most, self.running)
        await (self.let_go.wait() if task.id == "t0" else asyncio.sleep(0))
        self.running -= 1
        return Episode(task.id, sample, reward=float(sample) if task.id in ("t0", "t3") else 1.0)


@pytest.mark.parametrize("most", [None, 3])
async def test_run_groups_replaces_while_others_run(most: int | None) -> None:
    runner = TimedRunner(most)
    parts = [
        RolloutGroup([TASKS[0], TASKS[9]], range(2)),
        RolloutGroup([TASKS[1], TASKS[2], TASKS[3], TASKS[4]], range(2)),
    ]
    work = asyncio.create_task(run_groups(runner, parts, enough=2))
    while runner.started.count("t3") < 2:
        await asyncio.sleep(0)
    assert not work.done()
    runner.let_go.set()
    (slow, replaced), left = await work
    assert left == []
    assert [episode.task_id for episode in slow.episodes] == ["t0", "t0"]
    assert (slow.replaced, [episode.task_id for episode in replaced.episodes]) == ([], ["t3", "t3"])
    assert [episode.task_id for episode in replaced.replaced] == ["t1", "t1", "t2", "t2"]
    assert runner.most <= (most or 4)


async def test_run_groups_finishes_carried_groups() -> None:
    runner = TimedRunner()
    slow, quick, other = (RolloutGroup([TASKS[index]], range(2), {}) for index in (0, 3, 4))
    assert await run_groups(runner, [slow, quick], enough=1) == ([quick], [slow])
    assert (runner.started, slow.carried, quick.carried) == (["t0", "t0", "t3", "t3"], True, False)
    work = asyncio.create_task(run_groups(runner, [slow, other], enough=1))
    while "t4" not in runner.started:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not work.done()  # one has ended, but not the one that was carried
    runner.let_go.set()
    assert await work == ([slow], [other])


def test_task_order_has_each_task_once_per_epoch() -> None:
    order, again = (
        TaskOrder(tasks=12, groups_per_update=3, shuffle=True, seed=7) for _ in range(2)
    )
    first, second = ([order.task(12 * epoch + i) for i in range(12)] for epoch in (0, 1))
    assert first == list(
        RepeatSampler(range(12), mini_repeat_count=1, batch_size=3, shuffle=True, seed=7)
    )  # TRL's
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second != list(range(12))
    assert [again.task(12 + i) for i in range(12)] == second  # a resumed run begins anywhere


def test_task_order_seeds_by_update() -> None:
    order = TaskOrder(tasks=4, groups_per_update=2, shuffle=False, seed=3)
    assert [order.seed(group) - 3 * 1_000_003 for group in range(6)] == [0, 0, 1, 1, 2, 2]
