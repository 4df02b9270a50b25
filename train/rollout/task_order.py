"""Which task a group is about, and with which seed it is sampled: by the run's seed and the group's number alone."""

from __future__ import annotations

import torch

from atommem.errors import ConfigError


class TaskOrder:
    """Numbers the groups of a run: group i belongs to update ``i // groups_per_update``.

    An epoch gives each task at most once; tasks that do not fill an update are left out of it. A run that is resumed
    goes on in the order that it would have had.

    Args:
        tasks: How many there are.
        groups_per_update: Groups that one update is made of.
        shuffle: Whether every epoch has an order of its own.
        seed: The run's.

    Raises:
        ConfigError: There are fewer tasks than one update needs.
    """

    def __init__(self, tasks: int, groups_per_update: int, shuffle: bool, seed: int) -> None:
        if tasks < groups_per_update:
            raise ConfigError(
                f"{tasks} tasks are fewer than the {groups_per_update} groups of one update: give more data, a smaller "
                "per_device_train_batch_size or a larger num_generations."
            )
        self.groups_per_update = groups_per_update
        self.updates_per_epoch = tasks // groups_per_update
        self._tasks = tasks
        self._shuffle = shuffle
        self._seed = seed
        self._epoch: tuple[int, list[int]] = (-1, [])

    def task(self, group: int) -> int:
        """Index of the task of this group."""
        epoch, place = divmod(group, self.updates_per_epoch * self.groups_per_update)
        if self._epoch[0] != epoch:
            generator = torch.Generator().manual_seed(self._seed + 1_000_003 * epoch)
            order = (
                torch.randperm(self._tasks, generator=generator)
                if self._shuffle
                else torch.arange(self._tasks)
            )
            self._epoch = (epoch, order.tolist())
        return self._epoch[1][place]

    def seed(self, group: int) -> int:
        """Seed of this group's sampling."""
        return self._seed * 1_000_003 + group // self.groups_per_update
