"""What is logged of a rollout beyond the episodes' own statistics: scores by data source, how full stores with a limit
are in the end (``store_fill``, from 0 to 1), and where the time went.

Seconds of an update, each the mean over ranks:

``sync``      giving the sampling side the current weights
``rollout``   from the beginning of ``sync`` until the episodes of all ranks have ended
``generate``  at least one completion was being waited for
``embed``     at least one episode waited for embeddings (meanwhile others may generate)
``retrieve``  searching stores
``idle``      of the rollout, the time in which nothing was being generated: waiting for embeddings alone, for the
              environment, or for slower ranks
``train``     forward and backward passes

so that ``sync + generate + idle`` make up ``rollout`` (but for a little bookkeeping), and ``rollout + train`` an update
(but for the optimizer's step and for saving).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from atommem.activity import ActivityClock
from atommem.config import MemoryConfig
from atommem.description import TaskDescription
from atommem.episode import Episode
from atommem.episode_stats import add_value, episode_sums, means

SYNC, EPISODES, WAIT = "sync", "episodes", "wait"
"""Stages that the trainer times: publishing weights, this rank's episodes, waiting for those of the other ranks."""

_TIME = "time/"


class RolloutLog:
    """Collects one rank's part of it.

    Args:
        tasks: Those that episodes may be of, as their environment describes them.
        memory: The settings that the episodes run under.
    """

    def __init__(self, tasks: Iterable[TaskDescription], memory: MemoryConfig) -> None:
        self._memory = memory
        self._sources = {task.id: task.source for task in tasks}
        self.clock = ActivityClock()

    def sums(self, episodes: Sequence[Episode], activity: ActivityClock) -> dict[str, float]:
        """Additive totals: those of the episodes, with scores by source and fill; and seconds by stage since the last
        call.

        Args:
            episodes: Of the rollout, with stages timed by `clock`.
            activity: The runner's.
        """
        sums = episode_sums(episodes)
        for episode in episodes:
            if not episode.failed and (capacity := self._memory.of_task(episode.task_id).capacity):
                add_value(
                    sums,
                    "store_fill",
                    episode.steps[-1].store_size / capacity if episode.steps else 0.0,
                )
            source = self._sources.get(episode.task_id)
            if source and episode.reward is not None:
                for name, value in {"reward": episode.reward, **episode.metrics}.items():
                    add_value(sums, f"{name}/{source}", value)
        for stage, seconds in {**activity.take(), **self.clock.take()}.items():
            sums[_TIME + stage] = seconds
        return sums


def rollout_means(sums: Mapping[str, float], ranks: int) -> dict[str, float]:
    """`atommem.episode_stats.means`, with ``reward/SOURCE``, ``em/SOURCE``, ..., ``store_fill``; and ``seconds/STAGE``:
    means over ranks.

    Args:
        sums: `RolloutLog.sums` of all ranks, added up.
        ranks: Their number.
    """
    found = means(sums)
    seconds = {
        key.removeprefix(_TIME): value / ranks
        for key, value in sums.items()
        if key.startswith(_TIME)
    }
    episodes, wait = seconds.pop(EPISODES, 0.0), seconds.pop(WAIT, 0.0)
    for stage in (SYNC, "generate", "embed", "retrieve"):
        found[f"seconds/{stage}"] = seconds.get(stage, 0.0)
    found["seconds/idle"] = max(episodes - found["seconds/generate"], 0.0) + wait
    return found
