"""The trainer's end of the rollout queue."""

from __future__ import annotations

import queue
from collections.abc import Callable, MutableMapping
from typing import Any

from atommem.train.loops.asynchronous.groups import Group
from atommem.train.loops.asynchronous.worker import RolloutWorker

POLL_SECONDS = 1.0


class GroupReader:
    """Takes the groups of an update from the worker's queue; those that are too old are not trained on.

    Args:
        worker: Fills the queue.
        version: The current version of the weights.
        max_staleness: How much older a group's oldest step may be.
        stale_after_s: Seconds without a completion after which waiting is given up.
        metrics: The trainer's; lists by name.
        stopped: Whether the run was asked to stop: waiting ends then.
    """

    def __init__(
        self,
        worker: RolloutWorker,
        version: Callable[[], int],
        max_staleness: int,
        stale_after_s: float,
        metrics: MutableMapping[str, list[Any]],
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._worker = worker
        self._version = version
        self._max_staleness = max_staleness
        self._stale_after_s = stale_after_s
        self._metrics = metrics
        self._stopped = stopped
        self._taken: dict[int, int] = {}  # index of a group, trained on or too old -> update

    def take(self, count: int, update: int) -> list[Group]:
        """The next `count` groups that are fresh enough, in the order in which they ended; waits for them.

        Fewer when the run was asked to stop. `update` is the number of the update that they are for.

        Raises:
            OutageError: No completion came for too long.
            Exception: Whatever ended the rollout thread.
        """
        groups: list[Group] = []
        stale = 0
        while len(groups) < count:
            group = self._next()
            if group is None:
                break
            self._taken[group.index] = update
            if self._version() - group.oldest > self._max_staleness:
                stale += 1
                self._worker.replace_group()
            else:
                groups.append(group)
        self._metrics["sample/dropped_stale_total"].append(float(stale))
        self._log_staleness(groups)
        return groups

    def position(self, updates: int) -> tuple[int, list[int]]:
        """Where a run goes on after `updates` of them.

        Returns:
            The first group after all that these updates took, and the groups before it that they did not:
            those were in flight.
        """
        taken = {index for index, update in self._taken.items() if update < updates}
        following = max(taken, default=-1) + 1
        return following, sorted(set(range(following)) - taken)

    def resume_at(self, next_group: int, pending: list[int]) -> None:
        """Count all groups before `next_group`, but for the `pending` ones, as taken."""
        self._taken = dict.fromkeys(set(range(next_group)) - set(pending), -1)

    def _next(self) -> Group | None:
        while not self._stopped():
            try:
                return self._worker.rollout_buffer.get(timeout=POLL_SECONDS)
            except queue.Empty:
                self._worker.check_health(self._stale_after_s)
        return None

    def _log_staleness(self, groups: list[Group]) -> None:
        version = self._version()
        steps = [version - v for group in groups for versions in group.versions for v in versions]
        if steps:
            self._metrics["sample/staleness_mean"].append((float(sum(steps)), float(len(steps))))
            self._metrics["sample/staleness_max"].append(float(max(steps)))
