"""Branch rollouts: continue an episode several times from one step (Memory-R2, arXiv 2605.21768).

Episodes of a group soon have different memories, so their rewards compare more than one decision.
Branches of one step share its memory, which the operation log restores.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atommem.episode import Episode
from atommem.rollout import EpisodeRunner, run_jobs
from atommem.train.objective.advantages import compression_reward, group_advantages, has_variance
from atommem.train.objective.rows import EpisodeSize
from atommem.train.rollout.groups import RolloutGroup
from atommem.train.train_config import TrainConfig


@dataclass(frozen=True, slots=True)
class BranchPoint:
    """The step `begin` of `episode`, from which branches continue."""

    task: Any
    episode: Episode
    begin: int


def draw_branch_points(groups: Sequence[RolloutGroup], seed: str) -> list[BranchPoint]:
    """Draw one step of each finished group; not the first one, which its episodes share anyway."""
    points = []
    for group in groups:
        task = group.tasks[0]
        episodes = [e for e in group.episodes if not e.failed and len(e.steps) > 1]
        if episodes:
            rng = random.Random(f"{seed}/{task.id}")
            episode = rng.choice(episodes)
            points.append(BranchPoint(task, episode, rng.randrange(1, len(episode.steps))))
    return points


async def run_branches(
    runner: EpisodeRunner,
    points: Sequence[BranchPoint],
    samples: range,
    on_episode: Callable[[int, Episode], None] | None = None,
) -> list[list[Episode]]:
    """Return, for each point, its own episode and one branch per sample; all of them whole."""

    async def run(point: BranchPoint, sample: int) -> Episode:
        return await runner.run(point.task, sample, past=point.episode.steps[: point.begin])

    jobs = [(point, sample) for point in points for sample in samples]
    episodes = iter(await run_jobs(run, jobs, on_episode, runner.max_in_flight))
    return [[point.episode, *(next(episodes) for _ in samples)] for point in points]


@dataclass(frozen=True, slots=True)
class BranchData:
    """The steps after each branch point as training data, with one advantage per step.

    `has_variance` is true of points whose branches differ.
    """

    episodes: list[Episode]
    advantages: list[list[float]]
    sizes: list[EpisodeSize]
    has_variance: list[bool]


def branch_data(
    args: TrainConfig, points: Sequence[BranchPoint], branches: Sequence[Sequence[Episode]]
) -> BranchData:
    """Compare the branches of each point among themselves."""
    data = BranchData([], [], [], [])
    for point, group in zip(points, branches, strict=True):
        rewards = [compression_reward(episode, args.compression_reward) for episode in group]
        data.has_variance.append(has_variance(rewards))
        by_episode = group_advantages(rewards, len(group), str(args.scale_rewards))
        for episode, advantage in zip(group, by_episode, strict=True):
            tail = replace(episode, steps=episode.steps[point.begin :])
            data.episodes.append(tail)
            data.advantages.append([advantage] * len(tail.steps))
            data.sizes.append(EpisodeSize.of(tail, args.overlong_filtering))
    return data
