"""The episodes of one on-policy update: which tasks, on which rank, with what outcome."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from atommem.episode import Episode
from atommem.train.objective.advantages import group_advantages, zero_variance_fraction
from atommem.train.objective.sequences import EpisodeSize
from atommem.train.rollout.dynamic_sampling import replacement_tasks
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
    """Run this rank's episodes of the running update; groups may straddle ranks. All ranks call it together."""
    started = time.perf_counter()
    args, accelerator = trainer.args, trainer.accelerator
    update, group_size = trainer.state.global_step // args.updates_per_rollout, args.num_generations or 1
    groups = [update * order.groups_per_update + i for i in range(order.groups_per_update)]
    tasks = [trainer.tasks[order.task(group)] for group in groups]
    count = args.per_device_train_batch_size * (args.steps_per_generation or 1)
    own = range(accelerator.process_index * count, (accelerator.process_index + 1) * count)
    # Seeds depend on the run's seed and the update, not on the state of a generator: a resumed run repeats them.
    agent = trainer.backend.runner.agent
    agent.sampling = replace(agent.sampling, seed=order.seed(groups[0]))
    trainer.publish()
    everything = episodes = trainer.run_episodes([(tasks[i // group_size], i % group_size) for i in own])
    rewards, sizes = _gather_outcomes(trainer, episodes)
    trainer.log_with_update({"frac_reward_zero_std": zero_variance_fraction(rewards, group_size)})
    seen, replaced = {task.id for task in tasks}, 0
    for round_ in range(args.dynamic_sampling_rounds):
        drawn = replacement_tasks(rewards, group_size, trainer.tasks, seen, f"{args.seed}/{update}/{round_}")
        if not drawn:
            break
        seen, replaced = seen | {task.id for task in drawn.values()}, replaced + len(drawn)
        again = [i for i in own if i // group_size in drawn]
        fresh = trainer.run_episodes([(drawn[i // group_size], i % group_size) for i in again])
        everything = everything + fresh
        episodes = [*(dict(zip(own, episodes, strict=True)) | dict(zip(again, fresh, strict=True))).values()]
        rewards, sizes = _gather_outcomes(trainer, episodes)
    if args.dynamic_sampling_rounds:
        trainer.log_with_update({"dynamic_sampling/replaced_groups": float(replaced)})
    trainer.end_rollout(everything, rewards, time.perf_counter() - started)
    advantages = group_advantages(rewards, group_size, str(args.scale_rewards))[own.start : own.stop]
    return Collected(episodes, advantages, sizes)


def _gather_outcomes(
    trainer: RolloutTrainer, episodes: Sequence[Episode]
) -> tuple[list[float | None], list[EpisodeSize]]:
    """Reward (None: failed) and size of every episode of the global batch, in its order."""
    sizes = [EpisodeSize.of(episode, trainer.args.overlong_filtering) for episode in episodes]
    table = torch.tensor(
        [
            [math.nan if episode.reward is None else episode.reward, size.tokens, size.steps]
            for episode, size in zip(episodes, sizes, strict=True)
        ],
        dtype=torch.float32,
        device=trainer.accelerator.device,
    )
    outcomes = trainer.accelerator.gather(table).tolist()
    rewards = [None if math.isnan(reward) else reward for reward, _, _ in outcomes]
    return rewards, [EpisodeSize(int(tokens), int(steps)) for _, tokens, steps in outcomes]
