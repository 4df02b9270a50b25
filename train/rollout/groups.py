"""The groups of an update: which tasks, on which rank, with what outcome.

With `dynamic_sampling` (DAPO, arXiv 2503.14476, section 3.2; bounded here), other tasks replace
groups without variance.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch

from atommem.episode import Episode
from atommem.rollout import EpisodeRunner
from atommem.train.objective.advantages import has_variance
from atommem.train.objective.rows import EpisodeSize
from atommem.train.rollout.rollouts import TaskOrder
from atommem.train.train_config import TrainConfig


@dataclass(slots=True, eq=False)
class RolloutGroup:
    """The episodes of a group that this rank runs: all of them, or those that fall to it.

    Attributes:
        tasks: Its task, then those that may replace it while it has no variance.
        samples: Which of the group's episodes.
        episodes: Of the last task.
        replaced: Of the tasks before it.
    """

    tasks: Sequence[Any]
    samples: Sequence[int]
    episodes: list[Episode] = field(default_factory=list)
    replaced: list[Episode] = field(default_factory=list)

    async def run(
        self, runner: EpisodeRunner, on_episode: Callable[[int, Episode], None] | None = None
    ) -> None:
        """Run the episodes, then those of replacements while they have no variance."""
        for task in self.tasks:
            self.replaced += self.episodes
            jobs = [(task, sample) for sample in self.samples]
            self.episodes = await runner.run_all(jobs, on_episode)
            if has_variance([episode.reward for episode in self.episodes]):
                return


def plan_groups(
    args: TrainConfig, order: TaskOrder, tasks: Sequence[Any], update: int, own: range
) -> list[RolloutGroup]:
    """Return this rank's share of the groups of an update: its episodes with the indices `own`.

    Every rank and a resumed run draw the same replacements, and no task twice.
    """
    count, size = order.groups_per_update, args.num_generations or 1
    planned = [tasks[order.task(update * count + place)] for place in range(count)]
    others: list[Any] = []
    if args.dynamic_sampling:
        used = {task.id for task in planned}
        others = [task for task in tasks if task.id not in used]
        random.Random(f"{args.seed}/{update}").shuffle(others)
    return [
        RolloutGroup(
            [planned[place], *others[place::count][: args.dynamic_sampling]],
            [index % size for index in members],
        )
        for place, members in groupby(own, lambda index: index // size)
    ]


async def run_groups(
    runner: EpisodeRunner,
    groups: Sequence[RolloutGroup],
    on_episode: Callable[[int, Episode], None] | None = None,
) -> None:
    """Run `groups` concurrently; the runner's limit of episodes holds for all together."""
    if isinstance(runner.max_in_flight, int):
        runner = runner.using()
        runner.max_in_flight = asyncio.Semaphore(runner.max_in_flight)  # type: ignore[arg-type]
    try:
        async with asyncio.TaskGroup() as running:
            for group in groups:
                running.create_task(group.run(runner, on_episode))
    except BaseExceptionGroup as failures:
        # The first failure is the cause; the others only repeat it.
        raise failures.exceptions[0] from None


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Outcomes of every episode of the global batch, in order.

    Attributes:
        rewards: None of a failed episode.
        replaced: Number of groups that were replaced by the episode's own.
        sizes: See `EpisodeSize`.
    """

    rewards: list[float | None]
    replaced: list[int]
    sizes: list[EpisodeSize]


def gather_outcomes(
    accelerator: Any, groups: Sequence[RolloutGroup], overlong_filtering: bool
) -> Outcomes:
    """Gather the outcomes of all ranks' episodes; collective."""
    rows = []
    for group in groups:
        replaced = len(group.replaced) // len(group.samples)
        for episode in group.episodes:
            size = EpisodeSize.of(episode, overlong_filtering)
            reward = math.nan if episode.reward is None else episode.reward
            rows.append([reward, replaced, size.tokens, size.steps])
    table = torch.tensor(rows, dtype=torch.float32, device=accelerator.device)
    gathered = accelerator.gather(table).tolist()
    return Outcomes(
        [None if math.isnan(reward) else reward for reward, *_ in gathered],
        [int(replaced) for _, replaced, *_ in gathered],
        [EpisodeSize(int(tokens), int(steps)) for *_, tokens, steps in gathered],
    )
