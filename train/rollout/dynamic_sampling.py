"""Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2), bounded: groups that teach nothing get other tasks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from atommem.episode import Episode
from atommem.episode_runner import EpisodeRunner, run_jobs
from atommem.train.objective.advantages import has_variance


@dataclass(slots=True)
class GroupPart:
    """What a rank runs of a group: all of it, or the samples that fall to this rank.

    Attributes:
        tasks: What it is about, and by what it is replaced, one after the other, while it has no variance.
        samples: Which of the group's episodes.
        episodes: Those of the task that was the last.
        replaced: Those of the tasks before it.
    """

    tasks: Sequence[Any]
    samples: Sequence[int]
    episodes: list[Episode] = field(default_factory=list)
    replaced: list[Episode] = field(default_factory=list)

    async def run(self, runner: EpisodeRunner, on_episode: Callable[[int, Episode], None] | None = None) -> GroupPart:
        """Run the episodes; a replacement begins as soon as the last one before it has ended."""
        for task in self.tasks:
            self.replaced += self.episodes
            self.episodes = await runner.run_all([(task, sample) for sample in self.samples], on_episode)
            if has_variance([episode.reward for episode in self.episodes]):
                break
        return self


async def run_parts(
    runner: EpisodeRunner, parts: Sequence[GroupPart], on_episode: Callable[[int, Episode], None] | None = None
) -> Sequence[GroupPart]:
    """Run all `parts`, free-running, with the runner's bound on all of their episodes together."""
    shared = runner.using()
    if isinstance(runner.max_in_flight, int):
        shared.max_in_flight = asyncio.Semaphore(runner.max_in_flight)
    return await run_jobs(lambda part, _: part.run(shared, on_episode), [(part, 0) for part in parts])


def replacement_tasks(
    tasks: Sequence[Any], seen: Collection[str], groups: int, most: int, seed: str
) -> list[Sequence[Any]]:
    """For each group the tasks that may replace its own: by its place alone, not by which group ends when.

    Args:
        tasks: All training tasks.
        seen: Ids of those that this update has already; none of them is drawn, and none is drawn twice.
        groups: Of the global batch.
        most: Replacements of a group; fewer where tasks run out.
        seed: What the draw depends on: with the same one, every rank and a resumed run draw the same.
    """
    if not most:
        return [()] * groups
    unseen = [task for task in tasks if task.id not in seen]
    random.Random(seed).shuffle(unseen)
    return [unseen[place::groups][:most] for place in range(groups)]
