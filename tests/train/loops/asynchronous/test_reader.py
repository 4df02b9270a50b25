"""The trainer's end of the queue: groups by their numbers, whichever of them end first, and their rows."""

from __future__ import annotations

import queue
from collections import defaultdict
from typing import Any

import pytest

from atommem.train.episode_config import EpisodeConfig
from atommem.train.loops.asynchronous.groups import Group, batch_of
from atommem.train.loops.asynchronous.reader import GroupReader
from tests.train.loops.asynchronous.fakes import FakeRunner, running_worker
from tests.train.toys import make_episode


class QueuedWorker:
    """A queue of groups of the given (index, version of each step)."""

    def __init__(self, *groups: tuple[int, list[int]]) -> None:
        self.rollout_buffer: queue.Queue[Group] = queue.Queue()
        for index, versions in groups:
            episode = make_episode(f"t{index}", 0, 1.0, [(2, 1)] * len(versions))
            self.rollout_buffer.put(Group(index, [episode], [versions]))

    def check_health(self, stale_after_s: float) -> None:
        raise TimeoutError(stale_after_s)


def reader(worker: Any, version: int = 1) -> tuple[GroupReader, dict[str, list[Any]]]:
    metrics: dict[str, list[Any]] = defaultdict(list)
    return GroupReader(worker, lambda: version, 30.0, metrics), metrics


def test_groups_are_taken_by_their_numbers() -> None:
    taking, metrics = reader(QueuedWorker((2, [5, 5]), (1, [3, 3]), (0, [3, 5]), (3, [5])), version=5)
    assert [group.index for group in taking.take(range(2))] == [0, 1]
    assert metrics["sample/staleness_mean"] == [(6.0, 4.0)]
    assert metrics["sample/staleness_max"] == [2.0]
    assert [group.index for group in taking.take(range(2, 4))] == [2, 3]


def test_long_tasks_have_their_share_and_none_is_too_old() -> None:
    """Every fourth task takes fifty times as long; six updates of two groups, at most two versions ahead."""

    class Uneven(FakeRunner):
        async def run(self, task: Any, sample: int = 0) -> Any:
            for _ in range(200 if int(task.id[1:]) % 4 == 0 else 4):
                await self.agent.policy.complete([sample], self.agent.sampling)
            return await super().run(task, sample)

    settings: dict[str, Any] = {"groups_per_version": 2, "max_staleness": 2, "total": 12}
    with running_worker(Uneven(lambda *run: 1.0), **settings) as worker:
        taking, metrics = reader(worker)
        taking._version = lambda: worker.version
        taken = []
        for update in range(6):
            taken.append([group.index for group in taking.take(range(2 * update, 2 * update + 2))])
            worker.update_model_version(update + 2)
    assert taken == [[2 * update, 2 * update + 1] for update in range(6)]
    assert max(metrics["sample/staleness_max"]) <= 2


def test_waiting_asks_for_the_worker_s_health_and_ends_when_the_run_has_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atommem.train.loops.asynchronous.reader.POLL_SECONDS", 0.01)
    with pytest.raises(TimeoutError, match="30"):
        reader(QueuedWorker())[0].take([0])
    worker: Any = QueuedWorker((0, [1]))
    stopping = GroupReader(worker, lambda: 1, 30.0, defaultdict(list), stopped=worker.rollout_buffer.empty)
    assert [group.index for group in stopping.take(range(2))] == [0]


def test_groups_without_variance_are_not_trained_on_but_counted() -> None:
    varied, equal = (
        Group(0, [make_episode("t", sample, reward, [(3, 2)]) for sample, reward in enumerate(rewards)], [[4], [4]])
        for rewards in ((1.0, 0.0), (1.0, 1.0))
    )
    batch = batch_of([varied, equal], EpisodeConfig(normalization="token"))
    assert [row.advantage for row in batch.rows] == [0.5, -0.5]
    assert [row.prompt_ids.tolist() for row in batch.rows] == [e.steps[0].prompt_ids for e in varied.episodes]
    assert batch.normalizer == 8.0  # all four episodes have two tokens each
