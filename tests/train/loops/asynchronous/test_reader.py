"""The trainer's end of the queue: old groups are dropped and replaced, positions survive a restart."""

from __future__ import annotations

import queue
from collections import defaultdict
from typing import Any

import pytest

from atommem.train.loops.asynchronous.groups import Group
from atommem.train.loops.asynchronous.reader import GroupReader
from tests.train.toys import make_episode


class QueuedWorker:
    """A queue of groups of the given (index, version of each step)."""

    def __init__(self, *groups: tuple[int, list[int]]) -> None:
        self.rollout_buffer: queue.Queue[Group] = queue.Queue()
        self.replaced = 0
        for index, versions in groups:
            episode = make_episode(f"t{index}", 0, 1.0, [(2, 1)] * len(versions))
            self.rollout_buffer.put(Group(index, [episode], [versions], versions[0]))

    def replace_group(self) -> None:
        self.replaced += 1

    def check_health(self, stale_after_s: float) -> None:
        raise TimeoutError(stale_after_s)


def reader(worker: QueuedWorker, version: int, max_staleness: int) -> tuple[GroupReader, dict[str, list[Any]]]:
    metrics: dict[str, list[Any]] = defaultdict(list)
    return GroupReader(worker, lambda: version, max_staleness, 30.0, metrics), metrics  # type: ignore[arg-type]


def test_the_oldest_step_decides() -> None:
    worker = QueuedWorker((0, [2, 5]), (1, [3, 3]), (2, [5, 5]))
    taking, metrics = reader(worker, version=5, max_staleness=2)
    assert [group.index for group in taking.take(2, update=0)] == [1, 2]
    assert worker.replaced == 1
    assert metrics["sample/dropped_stale_total"] == [1.0]
    assert metrics["sample/staleness_mean"] == [(4.0, 4.0)]
    assert metrics["sample/staleness_max"] == [2.0]


def test_with_staleness_zero_only_the_current_weights_will_do() -> None:
    worker = QueuedWorker((0, [4]), (1, [5]))
    taking, _ = reader(worker, version=5, max_staleness=0)
    assert [group.index for group in taking.take(1, update=0)] == [1]


def test_waiting_asks_for_the_worker_s_health(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atommem.train.loops.asynchronous.reader.POLL_SECONDS", 0.01)
    taking, _ = reader(QueuedWorker(), version=1, max_staleness=0)
    with pytest.raises(TimeoutError, match="30"):
        taking.take(1, update=0)


def test_waiting_ends_when_the_run_is_asked_to_stop() -> None:
    metrics: dict[str, list[Any]] = defaultdict(list)
    worker: Any = QueuedWorker((0, [1]))
    stopping = GroupReader(worker, lambda: 1, 0, 30.0, metrics, stopped=worker.rollout_buffer.empty)
    assert [group.index for group in stopping.take(2, update=0)] == [0]


def test_positions() -> None:
    taking, _ = reader(QueuedWorker((0, [1]), (3, [1]), (1, [1])), version=1, max_staleness=0)
    assert taking.position(0) == (0, [])
    taking.take(2, update=0)
    taking.take(1, update=1)
    assert taking.position(1) == (4, [1, 2])  # an update that was not finished has taken nothing
    assert taking.position(2) == (4, [2])
    resumed, _ = reader(QueuedWorker((2, [1])), version=1, max_staleness=0)
    resumed.resume_at(4, [2])
    assert resumed.position(2) == (4, [2])
    resumed.take(1, update=2)
    assert resumed.position(3) == (4, [])
