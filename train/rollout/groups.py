"""The groups of an update: which tasks, on which rank, with what outcome.

Two options change which groups an update trains on: dynamic sampling (DAPO, arXiv 2503.14476,
section 3.2), bounded, replaces groups without variance by other tasks; `carried_groups` starts more
groups than an update needs and finishes the rest in the next one (partial rollouts).
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch

from atommem.episode import Episode
from atommem.rollout import EpisodeRunner, Kept
from atommem.train.objective.advantages import (
    compression_reward,
    group_advantages,
    has_variance,
    state_advantages,
)
from atommem.train.objective.rows import EpisodeSize
from atommem.train.rollout.rollouts import TaskOrder
from atommem.train.train_config import TrainConfig


@dataclass(slots=True, eq=False)
class RolloutGroup:
    """The episodes of a group that this rank runs: all of them, or those that fall to it.

    Attributes:
        tasks: Its task, then those that may replace it while it has no variance.
        samples: Which of the group's episodes.
        kept: Partial episodes, if the group may be carried over to the next update.
        carried: Whether it was carried over.
        episodes: Of the last task.
        replaced: Of the tasks before it.
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
        """Run the episodes, then those of replacements while they have no variance."""
        kept: dict[str, Any] = {} if self.kept is None else {"kept": self.kept}
        while True:
            jobs = [(self.tasks[0], sample) for sample in self.samples]
            episodes = await runner.run_all(jobs, on_episode, **kept)
            if has_variance([episode.reward for episode in episodes]) or len(self.tasks) == 1:
                self.episodes = episodes
                return
            self.replaced, self.tasks = self.replaced + episodes, self.tasks[1:]


def plan_groups(
    args: TrainConfig, order: TaskOrder, tasks: Sequence[Any], update: int, own: range
) -> Iterator[RolloutGroup]:
    """Yield this rank's share of the groups of an update: its episodes with the indices `own`."""
    count, size = order.groups_per_update, args.num_generations or 1
    planned = [tasks[order.task(update * count + place)] for place in range(count)]
    seed = f"{args.seed}/{update}"
    used = {task.id for task in planned}
    others = replacement_tasks(tasks, used, count, args.dynamic_sampling, seed)
    for place, members in groupby(own, lambda i: i // size):
        kept: Kept | None = {} if args.carried_groups else None
        yield RolloutGroup([planned[place], *others[place]], [i % size for i in members], kept)


def replacement_tasks(
    tasks: Sequence[Any], used: Collection[str], groups: int, limit: int, seed: str
) -> list[Sequence[Any]]:
    """Draw, for each group of the global batch, at most `limit` tasks that may replace its own.

    Every rank and a resumed run draw the same. No task is drawn twice, nor one in `used`.
    """
    if not limit:
        return [()] * groups
    unused = [task for task in tasks if task.id not in used]
    random.Random(seed).shuffle(unused)
    return [unused[place::groups][:limit] for place in range(groups)]


async def run_groups(
    runner: EpisodeRunner,
    groups: Sequence[RolloutGroup],
    enough: int,
    on_episode: Callable[[int, Episode], None] | None = None,
) -> tuple[list[RolloutGroup], list[RolloutGroup]]:
    """Run `groups` concurrently until `enough` have finished, and all that were carried before.

    Returns:
        The finished groups, in order, and the interrupted ones, which are carried over.
    """
    if isinstance(runner.max_in_flight, int):
        runner = runner.using()
        runner.max_in_flight = asyncio.Semaphore(runner.max_in_flight)  # type: ignore[arg-type]
    running = [asyncio.create_task(group.run(runner, on_episode)) for group in groups]
    due = [task for task, group in zip(running, groups, strict=True) if group.carried]
    try:
        for first in asyncio.as_completed(running):
            await first
            if sum(task.done() for task in running) >= enough and all(t.done() for t in due):
                break
    finally:
        done = [
            group
            for task, group in zip(running, groups, strict=True)
            if task.done() and not task.cancelled()
        ]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    done.sort(key=lambda group: not group.carried)
    finished = [group for group in groups if group in done[:enough]]
    left = [group for group in groups if group not in finished]
    for group in left:
        group.carried = True
    return finished, left


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
    accelerator: Any, args: TrainConfig, groups: Sequence[RolloutGroup]
) -> Outcomes:
    """Gather the outcomes of all ranks' episodes; collective."""
    rows = []
    for group in groups:
        replaced = len(group.replaced) // len(group.samples)
        for episode in group.episodes:
            size = EpisodeSize.of(episode, args.overlong_filtering)
            reward = compression_reward(episode, args.compression_reward)
            rows.append([math.nan if reward is None else reward, replaced, size.tokens, size.steps])
    table = torch.tensor(rows, dtype=torch.float32, device=accelerator.device)
    gathered = accelerator.gather(table).tolist()
    return Outcomes(
        [None if math.isnan(reward) else reward for reward, *_ in gathered],
        [int(replaced) for _, replaced, *_ in gathered],
        [EpisodeSize(int(tokens), int(steps)) for *_, tokens, steps in gathered],
    )


def step_advantages(
    args: TrainConfig, episodes: Sequence[Episode], rewards: Sequence[float | None], own: range
) -> list[list[float]]:
    """Return one advantage per step of this rank's `episodes`.

    Args:
        args: `scale_rewards` and `credit`.
        episodes: With the indices `own` of the global batch.
        rewards: Of the global batch.
        own: See `episodes`.
    """
    size = args.num_generations or 1
    by_episode = group_advantages(rewards, size, str(args.scale_rewards))[own.start : own.stop]
    advantages = [
        [advantage] * len(episode.steps)
        for episode, advantage in zip(episodes, by_episode, strict=True)
    ]
    if args.credit != "steps":
        return advantages
    own_rewards, by_state = rewards[own.start : own.stop], []
    for start in range(0, len(episodes), size):
        group = slice(start, start + size)
        by_state += state_advantages(episodes[group], own_rewards[group])
    return [
        [whole + part for whole, part in zip(*steps, strict=True)]
        for steps in zip(advantages, by_state, strict=True)
    ]
