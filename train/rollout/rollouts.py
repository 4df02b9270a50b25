"""How training episodes run, whichever backend samples them: the runner, and the order of tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from atommem.config import MemoryConfig
from atommem.embedding.embedder import Embedder
from atommem.environment import EnvironmentConfig
from atommem.errors import ConfigError
from atommem.policy.contract import Policy, Sampling
from atommem.rollout import ENCODE_THREADS, EpisodeRunner, Limits
from atommem.run import RunConfig, build_agent


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Everything of a training episode but its policy; `args` is an `EpisodeConfig`."""

    args: Any
    tokenizer: Any
    embedder: Embedder
    memory: MemoryConfig
    environment: EnvironmentConfig

    def runner(self, policy: Policy, max_in_flight: int | None = None) -> EpisodeRunner:
        """Make the episode loop around `policy`."""
        args = self.args
        run = RunConfig(
            memory=self.memory,
            environment=self.environment,
            sampling=Sampling(
                temperature=args.temperature, max_tokens=args.max_completion_length or 1024
            ),
            chat_template_kwargs=args.template_kwargs,
        )
        agent = build_agent(
            run,
            policy,
            tokenizer=self.tokenizer,
            embedder=self.embedder,
            encode_threads=ENCODE_THREADS,
            keep_prompts=True,
        )
        limits = Limits(max_tokens=args.episode_max_tokens, max_seconds=args.episode_max_seconds)
        return EpisodeRunner(agent, limits=limits, max_in_flight=max_in_flight)


class TaskOrder:
    """Assigns tasks and seeds to the groups of a run, by the run's seed and the group's number.

    Group i belongs to update ``i // groups_per_update``. An epoch has each task at most once; tasks
    that do not fill an update are left out. A resumed run continues in the same order.

    Args:
        tasks: How many there are.
        groups_per_update: Groups of one update.
        shuffle: Whether every epoch has its own order.
        seed: Of the run.
    """

    def __init__(self, tasks: int, groups_per_update: int, shuffle: bool, seed: int) -> None:
        if tasks < groups_per_update:
            raise ConfigError(
                f"{tasks} tasks are fewer than the {groups_per_update} groups of one update. Give "
                "more data, a smaller per_device_train_batch_size or a larger num_generations."
            )
        self.groups_per_update = groups_per_update
        self.updates_per_epoch = tasks // groups_per_update
        self._tasks = tasks
        self._shuffle = shuffle
        self._seed = seed
        self._epoch: tuple[int, list[int]] = (-1, [])

    def task(self, group: int) -> int:
        """Return the index of the task of this group."""
        epoch, place = divmod(group, self.updates_per_epoch * self.groups_per_update)
        if self._epoch[0] != epoch:
            generator = torch.Generator().manual_seed(self._seed + 1_000_003 * epoch)
            order = torch.arange(self._tasks)
            if self._shuffle:
                order = torch.randperm(self._tasks, generator=generator)
            self._epoch = (epoch, order.tolist())
        return self._epoch[1][place]

    def seed(self, group: int) -> int:
        """Return the sampling seed of this group."""
        return self._seed * 1_000_003 + group // self.groups_per_update
