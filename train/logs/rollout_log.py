"""What is logged of a rollout beside the episodes' own statistics.

Scores by data source, the fill of limited stores at the end (``store_fill``, 0 to 1), and the
seconds of an update, each a mean over ranks:

``sync``      giving the sampling side the current weights
``rollout``   from the start of ``sync`` until the episodes of all ranks have ended
``generate``  at least one completion was awaited
``embed``     at least one episode awaited embeddings
``retrieve``  searching stores
``idle``      of the rollout, without a completion being awaited: for embeddings alone, for the
              environment, or for slower ranks
``train``     forward and backward passes

``sync + generate + idle`` make up ``rollout``, and ``rollout + train`` an update without the
optimizer's step and saving.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from atommem.activity import ActivityClock
from atommem.config import MemoryConfig
from atommem.description import TaskDescription
from atommem.episode import Episode
from atommem.episode_stats import add_value, episode_sums, means

SYNC, EPISODES, WAIT = "sync", "episodes", "wait"
"""Stages that the trainer times: publishing weights, own episodes, waiting for other ranks."""

_TIME = "time/"


class RolloutLog:
    """Collects one rank's part of the log.

    Args:
        tasks: Those that episodes may be of, as their environment describes them.
        memory: The settings of the episodes.
    """

    def __init__(self, tasks: Iterable[TaskDescription], memory: MemoryConfig) -> None:
        self._memory = memory
        self._sources = {task.id: task.source for task in tasks}
        self.clock = ActivityClock()

    def sums(self, episodes: Sequence[Episode], activity: ActivityClock) -> dict[str, float]:
        """Return additive totals of `episodes`, and seconds by stage since the last call.

        `activity` is the runner's clock.
        """
        sums = episode_sums(episodes)
        for episode in episodes:
            capacity = self._memory.of_task(episode.task_id).capacity
            if capacity and not episode.failed:
                size = episode.steps[-1].store_size if episode.steps else 0
                add_value(sums, "store_fill", size / capacity)
            source = self._sources.get(episode.task_id)
            if source and episode.reward is not None:
                for name, value in {"reward": episode.reward, **episode.metrics}.items():
                    add_value(sums, f"{name}/{source}", value)
        for stage, seconds in {**activity.take(), **self.clock.take()}.items():
            sums[_TIME + stage] = seconds
        return sums


def rollout_means(sums: Mapping[str, float], ranks: int) -> dict[str, float]:
    """Return what is logged of `RolloutLog.sums`, added up over `ranks`."""
    log = means(sums)
    times = {key: value / ranks for key, value in sums.items() if key.startswith(_TIME)}
    for stage in (SYNC, "generate", "embed", "retrieve"):
        log[f"seconds/{stage}"] = times.get(_TIME + stage, 0.0)
    episodes, wait = times.get(_TIME + EPISODES, 0.0), times.get(_TIME + WAIT, 0.0)
    log["seconds/idle"] = max(episodes - log["seconds/generate"], 0.0) + wait
    return log
