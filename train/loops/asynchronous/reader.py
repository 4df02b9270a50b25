"""The trainer's end of the rollout queue."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

from atommem.train.loops.asynchronous.groups import Group
from atommem.train.loops.asynchronous.worker import RolloutWorker

POLL_SECONDS = 1.0


class GroupReader:
    """Takes the groups of an update from the worker's queue: by their numbers, not as they end.

    Else updates would be made of short tasks, and long ones would be too old when they end. The worker starts a group
    `max_staleness` versions before its turn: that is how much longer than others it may take before anybody waits.

    Args:
        worker: Fills the queue.
        version: The current version of the weights.
        stale_after_s: Seconds without a completion after which waiting is given up.
        metrics: The trainer's; lists by name.
        stopped: Whether the run was asked to stop: waiting ends then.
    """

    def __init__(
        self,
        worker: RolloutWorker,
        version: Callable[[], int],
        stale_after_s: float,
        metrics: MutableMapping[str, list[Any]],
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._worker = worker
        self._version = version
        self._stale_after_s = stale_after_s
        self._metrics = metrics
        self._stopped = stopped
        self._early: dict[int, Group] = {}

    def take(self, numbers: Iterable[int]) -> list[Group]:
        """The groups of these numbers; waits for them. Fewer when the run was asked to stop.

        Raises:
            OutageError: No completion came for too long.
            Exception: Whatever ended the rollout thread.
        """
        groups = []
        for number in numbers:
            while number not in self._early and not self._stopped():
                try:
                    group = self._worker.rollout_buffer.get(timeout=POLL_SECONDS)
                    self._early[group.index] = group
                except queue.Empty:
                    self._worker.check_health(self._stale_after_s)
            if number in self._early:
                groups.append(self._early.pop(number))
        version = self._version()
        steps = [version - v for group in groups for versions in group.versions for v in versions]
        if steps:
            self._metrics["sample/staleness_mean"].append((float(sum(steps)), float(len(steps))))
            self._metrics["sample/staleness_max"].append(float(max(steps)))
        return groups
