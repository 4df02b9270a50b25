"""The episodes of one on-policy update: which tasks, on which rank, with what outcome."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch

from atommem.episode import Episode
from atommem.train.objective.advantages import group_advantages, has_variance
from atommem.train.objective.sequences import EpisodeSize
from atommem.train.rollout.dynamic_sampling import GroupPart, replacement_tasks, run_parts
from atommem.train.rollout.rollout_trainer import RolloutTrainer
from atommem.train.rollout.task_order import TaskOrder


@dataclass(frozen=True, slots=True)
class Collected:
    """What an update trains on.

    Attributes:
        episodes: Of this rank.
        advantages: One for each of them.
        sizes: Of all ranks' episodes: what the loss is divided by.
    """

    episodes: list[Episode]
    advantages: list[float]
    sizes: list[EpisodeSize]


def collect(trainer: RolloutTrainer, order: TaskOrder) -> Collected:
    """Run this rank's episodes of the running update. All ranks call it together, and wait for each other at its end.

    The global batch is group after group, and each rank has an equal part of it: a group may straddle ranks, unless
    groups are replaced (`TrainConfig` sees to it).
    """
    started = time.perf_counter()
    args, accelerator = trainer.args, trainer.accelerator
    update, group_size = trainer.state.global_step // args.updates_per_rollout, args.num_generations or 1
    groups = [update * order.groups_per_update + i for i in range(order.groups_per_update)]
    tasks = [trainer.tasks[order.task(group)] for group in groups]
    count = len(groups) * group_size // accelerator.num_processes
    own = range(accelerator.process_index * count, (accelerator.process_index + 1) * count)
    # Seeds depend on the run's seed and the update, not on the state of a generator: a resumed run repeats them.
    agent = trainer.backend.runner.agent
    agent.sampling = replace(agent.sampling, seed=order.seed(groups[0]))
    others = replacement_tasks(
        trainer.tasks, {task.id for task in tasks}, len(tasks), args.dynamic_sampling, f"{args.seed}/{update}"
    )
    parts = [
        GroupPart([tasks[place], *others[place]], [i % group_size for i in members])
        for place, members in groupby(own, lambda i: i // group_size)
    ]
    trainer.publish()
    trainer.sample(lambda on_episode: run_parts(trainer.backend.runner, parts, on_episode), count)
    episodes = [episode for part in parts for episode in part.episodes]
    rewards, replaced, sizes = _gather_outcomes(trainer, parts)
    starts = range(0, len(rewards), group_size)
    flat = [bool(replaced[i]) or not has_variance(rewards[i : i + group_size]) for i in starts]
    trainer.log_with_update({"frac_reward_zero_std": sum(flat) / len(flat)})
    if args.dynamic_sampling:
        trainer.log_with_update({"dynamic_sampling/replaced_groups": float(sum(replaced[i] for i in starts))})
    everything = episodes + [episode for part in parts for episode in part.replaced]
    trainer.end_rollout(everything, rewards, time.perf_counter() - started)
    advantages = group_advantages(rewards, group_size, str(args.scale_rewards))[own.start : own.stop]
    return Collected(episodes, advantages, sizes)


def _gather_outcomes(
    trainer: RolloutTrainer, parts: Sequence[GroupPart]
) -> tuple[list[float | None], list[int], list[EpisodeSize]]:
    """Of every episode of the global batch, in its order: its reward (None: failed), how many groups its own has
    replaced, and its size."""
    rows = []
    for part in parts:
        for episode in part.episodes:
            size = EpisodeSize.of(episode, trainer.args.overlong_filtering)
            reward = math.nan if episode.reward is None else episode.reward
            rows.append([reward, len(part.replaced) // len(part.samples), size.tokens, size.steps])
    table = torch.tensor(rows, dtype=torch.float32, device=trainer.accelerator.device)
    outcomes = trainer.accelerator.gather(table).tolist()
    rewards = [None if math.isnan(reward) else reward for reward, *_ in outcomes]
    sizes = [EpisodeSize(int(tokens), int(steps)) for *_, tokens, steps in outcomes]
    return rewards, [int(replaced) for _, replaced, *_ in outcomes], sizes
