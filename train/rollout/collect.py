"""The episodes of one on-policy update: which tasks, on which rank, with what outcome."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, groupby, islice
from typing import Any

import torch
from accelerate.utils import gather_object

from atommem.episode import Episode
from atommem.episode_runner import Kept
from atommem.train.objective.advantages import group_advantages, has_variance
from atommem.train.objective.credit import by_state, reward_of
from atommem.train.objective.sequences import EpisodeSize
from atommem.train.rollout.dynamic_sampling import GroupPart, replacement_tasks, run_parts
from atommem.train.rollout.rerolls import moments, reroll
from atommem.train.rollout.rollout_trainer import RolloutTrainer
from atommem.train.rollout.task_order import TaskOrder


@dataclass(frozen=True, slots=True)
class Collected:
    """What an update trains on.

    Attributes:
        episodes: Of this rank.
        advantages: One for each of them, or one for each of its steps.
        sizes: Of all ranks' episodes: what the loss is divided by.
    """

    episodes: list[Episode]
    advantages: list[float | Sequence[float]]
    sizes: list[EpisodeSize]


def collect(trainer: RolloutTrainer, order: TaskOrder) -> Collected:
    """Run this rank's episodes of the running update. All ranks call it together, and wait for each other at its end.

    The global batch is group after group, and each rank has an equal part of it: a group may straddle ranks, unless
    groups are replaced or carried over (`TrainConfig` sees to it). With `carried_groups` a rank is ahead by so many; a
    run that is resumed begins with the groups of its update, so that as many are trained on again and as many never.
    """
    started = time.perf_counter()
    args, accelerator = trainer.args, trainer.accelerator
    update, ahead = trainer.state.global_step // args.updates_per_rollout, args.carried_groups
    group_size = args.num_generations or 1
    # Seeds depend on the run's seed and the update, not on the state of a generator: a resumed run repeats them.
    agent = trainer.backend.runner.agent
    agent.sampling = replace(agent.sampling, seed=order.seed(update * order.groups_per_update))
    size = order.groups_per_update * group_size // accelerator.num_processes
    own = range(accelerator.process_index * size, (accelerator.process_index + 1) * size)
    enough = len({i // group_size for i in own})
    coming = chain.from_iterable(_parts(trainer, order, later, own) for later in count(update))
    carried = trainer.carried
    begun = (carried or []) + [*islice(coming, 0 if carried is None else ahead, enough + ahead)]
    trainer.publish()
    parts, trainer.carried = trainer.sample(
        lambda on_episode: run_parts(trainer.backend.runner, begun, enough, on_episode),
        sum(len(part.samples) for part in begun),
    )
    episodes = [episode for part in parts for episode in part.episodes]
    rewards, replaced, sizes = _gather_outcomes(trainer, parts)
    starts = range(0, len(rewards), group_size)
    flat = [bool(replaced[i]) or not has_variance(rewards[i : i + group_size]) for i in starts]
    trainer.log_with_update({"frac_reward_zero_std": sum(flat) / len(flat)})
    if ahead:
        trainer.log_with_update({"carried_groups": float(sum(part.carried for part in parts))})
    if args.dynamic_sampling:
        trainer.log_with_update(
            {"dynamic_sampling/replaced_groups": float(sum(replaced[i] for i in starts))}
        )
    everything = episodes + [episode for part in parts for episode in part.replaced]
    trainer.end_rollout(everything, rewards, time.perf_counter() - started)
    advantages: list[float | Sequence[float]] = [
        *group_advantages(rewards, group_size, str(args.scale_rewards))[own.start : own.stop]
    ]
    if args.credit == "steps":
        advantages = _with_states(episodes, rewards[own.start : own.stop], advantages, group_size)
    collected = Collected(episodes, advantages, sizes)
    return _rerolled(trainer, parts, collected) if args.rerolls else collected


def _with_states(
    episodes: Sequence[Episode],
    rewards: Sequence[float | None],
    advantages: Sequence[Any],
    group_size: int,
) -> list[float | Sequence[float]]:
    """For each step the advantage of its episode, and that of its state."""
    found: list[float | Sequence[float]] = []
    for start in range(0, len(episodes), group_size):
        end = start + group_size
        states = by_state(episodes[start:end], rewards[start:end])
        found += [
            [whole + of for of in each]
            for whole, each in zip(advantages[start:end], states, strict=True)
        ]
    return found


def _rerolled(
    trainer: RolloutTrainer, parts: Sequence[GroupPart], collected: Collected
) -> Collected:
    """`collected`, and what came after one moment of each group, compared among themselves. All ranks together."""
    args = trainer.args
    begun = moments(parts, f"{args.seed}/{trainer.state.global_step}")
    samples = range(args.num_generations, args.num_generations + args.rerolls)
    groups = trainer.sample(
        lambda on_episode: reroll(trainer.backend.runner, begun, samples, on_episode),
        len(begun) * len(samples),
        "rerolls",
    )
    episodes, advantages = list(collected.episodes), list(collected.advantages)
    flat = []
    for moment, group in zip(begun, groups, strict=True):
        rewards = [reward_of(episode, args.compression_reward) for episode in group]
        advantages += group_advantages(rewards, len(group), str(args.scale_rewards))
        episodes += [replace(episode, steps=episode.steps[moment.begin :]) for episode in group]
        flat.append(float(not has_variance(rewards)))
    tails = [
        EpisodeSize.of(episode, args.overlong_filtering)
        for episode in episodes[len(collected.episodes) :]
    ]
    flat, tails = gather_object(flat), gather_object(tails)
    trainer.log_with_update(
        {"rerolls/groups": len(flat), "rerolls/zero_std": sum(flat) / max(len(flat), 1)}
    )
    return Collected(episodes, advantages, collected.sizes + tails)


def _parts(
    trainer: RolloutTrainer, order: TaskOrder, update: int, own: range
) -> Iterator[GroupPart]:
    """What falls to a rank of the groups of an update: the places `own` of its episodes."""
    args, groups, size = trainer.args, order.groups_per_update, trainer.args.num_generations or 1
    tasks = [trainer.tasks[order.task(update * groups + place)] for place in range(groups)]
    seen, seed = {task.id for task in tasks}, f"{args.seed}/{update}"
    others = replacement_tasks(trainer.tasks, seen, groups, args.dynamic_sampling, seed)
    for place, members in groupby(own, lambda i: i // size):
        kept: Kept | None = {} if args.carried_groups else None
        yield GroupPart([tasks[place], *others[place]], [i % size for i in members], kept)


def _gather_outcomes(
    trainer: RolloutTrainer, parts: Sequence[GroupPart]
) -> tuple[list[float | None], list[int], list[EpisodeSize]]:
    """Of every episode of the global batch, in its order: its reward (None: failed), how many groups its own has
    replaced, and its size."""
    rows = []
    for part in parts:
        for episode in part.episodes:
            size = EpisodeSize.of(episode, trainer.args.overlong_filtering)
            reward = reward_of(episode, trainer.args.compression_reward)
            reward = math.nan if reward is None else reward
            rows.append([reward, len(part.replaced) // len(part.samples), size.tokens, size.steps])
    table = torch.tensor(rows, dtype=torch.float32, device=trainer.accelerator.device)
    outcomes = trainer.accelerator.gather(table).tolist()
    rewards = [None if math.isnan(reward) else reward for reward, *_ in outcomes]
    sizes = [EpisodeSize(int(tokens), int(steps)) for *_, tokens, steps in outcomes]
    return rewards, [int(replaced) for _, replaced, *_ in outcomes], sizes
