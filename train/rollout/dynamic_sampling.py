"""Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2), bounded: groups that teach nothing get other tasks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from atommem.episode import Episode
from atommem.episode_runner import EpisodeRunner, Kept
from atommem.train.objective.advantages import has_variance


@dataclass(slots=True, eq=False)
class GroupPart:
    """What a rank runs of a group: all of it, or the samples that fall to this rank.

    Attributes:
        tasks: What it is about, and by what it is replaced, one after the other, while it has no variance.
        samples: Which of the group's episodes.
        kept: Its episodes, where it may be put down and gone on with in another update.
        carried: Whether it was put down.
        episodes: Those of the task that was the last.
        replaced: Those of the tasks before it.
    """

    tasks: Sequence[Any]
    samples: Sequence[int]
    kept: Kept | None = None
    carried: bool = False
    episodes: list[Episode] = field(default_factory=list)
    replaced: list[Episode] = field(default_factory=list)

    async def run(
        self, runner: EpisodeRunner, on_episode: Callable[[int, Episode], None] | None = None
    ) -> None:
        """Run the episodes; a replacement begins as soon as the last one before it has ended."""
        keeping: dict[str, Any] = {} if self.kept is None else {"kept": self.kept}
        while True:
            jobs = [(self.tasks[0], sample) for sample in self.samples]
            episodes = await runner.run_all(jobs, on_episode, **keeping)
            if has_variance([episode.reward for episode in episodes]) or len(self.tasks) == 1:
                self.episodes = episodes
                return
            self.replaced, self.tasks = self.replaced + episodes, self.tasks[1:]


async def run_parts(
    runner: EpisodeRunner,
    parts: Sequence[GroupPart],
    enough: int,
    on_episode: Callable[[int, Episode], None] | None = None,
) -> tuple[list[GroupPart], list[GroupPart]]:
    """Run `parts`, free-running, with the runner's bound on all of their episodes together.

    Returns:
        As soon as so many have ended as are `enough`, among them all that have been carried before: these, in their
        order, and the others, put down.
    """
    shared = runner
    if isinstance(runner.max_in_flight, int):
        shared = runner.using()
        shared.max_in_flight = asyncio.Semaphore(runner.max_in_flight)
    running = [asyncio.create_task(part.run(shared, on_episode)) for part in parts]
    try:
        for first in asyncio.as_completed(running):
            await first
            waited_for = [task for task, part in zip(running, parts, strict=True) if part.carried]
            if sum(task.done() for task in running) >= enough and all(
                task.done() for task in waited_for
            ):
                break
    finally:
        ended = [
            part
            for task, part in zip(running, parts, strict=True)
            if task.done() and not task.cancelled()
        ]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    ended.sort(key=lambda part: not part.carried)
    taken = [part for part in parts if part in ended[:enough]]
    left = [part for part in parts if part not in taken]
    for part in left:
        part.carried = True
    return taken, left


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
