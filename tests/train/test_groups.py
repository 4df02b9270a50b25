"""Tasks and seeds of groups; replaced groups."""

from __future__ import annotations

import asyncio
from typing import Any

from trl.trainer.utils import RepeatSampler

from atommem.episode import Episode
from atommem.rollout import EpisodeRunner
from atommem.train.rollout.rollouts import RolloutGroup, TaskOrder, run_groups
from tests.train.toys import ToyTask

TASKS = [ToyTask(f"t{index}") for index in range(10)]


class TimedRunner(EpisodeRunner):
    """Episodes of t0 wait for `let_go`; only t0 and t3 have variance."""

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.started: list[str] = []
        self.let_go = asyncio.Event()

    async def run(self, task: Any, sample: int = 0, **_: Any) -> Episode:
        self.started.append(task.id)
        await (self.let_go.wait() if task.id == "t0" else asyncio.sleep(0))
        return Episode(task.id, sample, reward=float(sample) if task.id in ("t0", "t3") else 1.0)


async def test_run_groups_replaces_while_others_run() -> None:
    runner = TimedRunner()
    slow = RolloutGroup([TASKS[0], TASKS[9]], range(2))
    replaced = RolloutGroup([TASKS[1], TASKS[2], TASKS[3], TASKS[4]], range(2))
    work = asyncio.create_task(run_groups(runner, [slow, replaced]))
    while runner.started.count("t3") < 2:
        await asyncio.sleep(0)
    assert not work.done()
    runner.let_go.set()
    await work
    assert [episode.task_id for episode in slow.episodes] == ["t0", "t0"]
    assert (slow.replaced, [episode.task_id for episode in replaced.episodes]) == ([], ["t3", "t3"])
    assert [episode.task_id for episode in replaced.replaced] == ["t1", "t1", "t2", "t2"]


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
    assert [order.seed(group) - 7 * 1_000_003 for group in (0, 2, 3, 6)] == [0, 0, 1, 2]
