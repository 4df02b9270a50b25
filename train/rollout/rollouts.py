"""How training episodes run, whichever backend samples them: runner, order of tasks, groups.

With `dynamic_sampling` (DAPO, arXiv 2503.14476, section 3.2; bounded here), other tasks replace
groups without variance.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from accelerate.utils import gather_object

from atommem.embedding.embedder import Embedder
from atommem.episode import Episode
from atommem.errors import ConfigError
from atommem.policy.contract import Policy
from atommem.process import run_jobs
from atommem.rollout import ENCODE_THREADS, EpisodeRunner, Limits
from atommem.run import RunConfig, build_agent
from atommem.train.objective.rows import EpisodeSize, has_variance


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Everything of a training episode but its policy; `args` is an `EpisodeConfig`."""

    args: Any
    run: RunConfig
    tokenizer: Any
    embedder: Embedder

    def runner(self, policy: Policy) -> EpisodeRunner:
        args, shared = self.args, {"tokenizer": self.tokenizer, "embedder": self.embedder}
        options: dict[str, Any] = {"encode_threads": ENCODE_THREADS, "keep_prompts": True}
        agent = build_agent(self.run, policy, **shared, **options)
        limits = Limits(max_tokens=args.episode_max_tokens, max_seconds=args.episode_max_seconds)
        slots = asyncio.Semaphore(args.max_inflight_tasks) if args.max_inflight_tasks > 0 else None
        return EpisodeRunner(agent, limits=limits, max_in_flight=slots)


class TaskOrder:
    """Assigns tasks and seeds to the groups of a run, by the run's seed and the group's number.

    Group i belongs to update ``i // groups_per_update``. An epoch has each task at most once; tasks
    that do not fill an update are left out. A resumed run continues in the same order.
    """

    def __init__(self, tasks: int, groups_per_update: int, shuffle: bool, seed: int) -> None:
        if tasks < groups_per_update:
            raise ConfigError(
                f"{tasks} tasks are fewer than the {groups_per_update} groups of one update. Give "
                "more data, a smaller per_device_train_batch_size or a larger num_generations."
            )
        self.groups_per_update = groups_per_update
        self.updates_per_epoch = tasks // groups_per_update
        self._tasks, self._shuffle, self._seed = tasks, shuffle, seed
        self._epoch: tuple[int, list[int]] = (-1, [])

    def task(self, group: int) -> int:
        epoch, place = divmod(group, self.updates_per_epoch * self.groups_per_update)
        if self._epoch[0] != epoch:
            generator = torch.Generator().manual_seed(self._seed + 1_000_003 * epoch)
            shuffled = torch.randperm(self._tasks, generator=generator).tolist()
            self._epoch = (epoch, shuffled if self._shuffle else [*range(self._tasks)])
        return self._epoch[1][place]

    def seed(self, group: int) -> int:
        return self._seed * 1_000_003 + group // self.groups_per_update


@dataclass(slots=True, eq=False)
class RolloutGroup:
    """The episodes of a group that this rank runs: all of them, or those that fall to it."""

    tasks: Sequence[Any]  # its own, then those that may replace it while it has no variance
    samples: Sequence[int]  # which of the group's episodes
    episodes: list[Episode] = field(default_factory=list)  # of the last task
    replaced: list[Episode] = field(default_factory=list)  # of the tasks before it


def plan_groups(
    args: Any, order: TaskOrder, tasks: Sequence[Any], update: int, own: range
) -> list[RolloutGroup]:
    """Return this rank's share of the groups of an update: its episodes with the indices `own`.

    Every rank and a resumed run draw the same replacements, and no task twice.
    """
    count, size = order.groups_per_update, args.num_generations
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
    """Run `groups` concurrently, each with its replacements while it has no variance."""

    async def run(group: RolloutGroup, _: int) -> None:
        for task in group.tasks:
            group.replaced += group.episodes
            jobs = [(task, sample) for sample in group.samples]
            group.episodes = await runner.run_all(jobs, on_episode)
            if has_variance([episode.reward for episode in group.episodes]):
                return

    await run_jobs(run, [(group, 0) for group in groups])


def gather_outcomes(
    groups: Sequence[RolloutGroup], args: Any
) -> tuple[list[float | None], list[EpisodeSize], dict[str, float]]:
    """Return reward and size of every episode of all ranks, and what is logged; collective."""
    own: list[tuple[float | None, EpisodeSize, int]] = []
    for group in groups:
        times = len(group.replaced) // len(group.samples)
        sizes = [EpisodeSize.of(e, args.overlong_filtering) for e in group.episodes]
        own += [(e.reward, size, times) for e, size in zip(group.episodes, sizes, strict=True)]
    rewards, sizes, replaced = (list(column) for column in zip(*gather_object(own), strict=True))
    size = args.num_generations
    starts = range(0, len(rewards), size)
    flat = [bool(replaced[i]) or not has_variance(rewards[i : i + size]) for i in starts]
    log = {"frac_reward_zero_std": sum(flat) / len(flat)}
    if args.dynamic_sampling:
        log["dynamic_sampling/replaced_groups"] = float(sum(replaced[i] for i in starts))
    return rewards, sizes, log
