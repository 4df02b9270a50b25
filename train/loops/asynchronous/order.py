"""Which task a group is about, and with which seed it is sampled: the same as in on-policy training."""

from __future__ import annotations

from atommem.train.rollout.epoch_sampler import EpochSampler


class TaskOrder:
    """Numbers the groups of a run: group i belongs to update ``i // groups_per_update``.

    An epoch gives each task at most once; tasks that do not fill an update are left out of it.

    Args:
        tasks: How many there are, at least `groups_per_update`.
        groups_per_update: Groups that one update is made of.
        shuffle: Whether every epoch has an order of its own.
        seed: The run's.
    """

    def __init__(self, tasks: int, groups_per_update: int, shuffle: bool, seed: int) -> None:
        self.groups_per_update = groups_per_update
        self.groups_per_epoch = tasks // groups_per_update * groups_per_update
        self._tasks = tasks
        self._shuffle = shuffle
        self._seed = seed
        self._epoch: tuple[int, list[int]] = (-1, [])

    def task(self, group: int) -> int:
        """Index of the task of this group."""
        epoch, place = divmod(group, self.groups_per_epoch)
        if self._epoch[0] != epoch:
            sampler = EpochSampler(
                data_source=range(self._tasks),
                mini_repeat_count=1,
                batch_size=self.groups_per_update,
                shuffle=self._shuffle,
                seed=self._seed,
                epoch=lambda: epoch,
            )
            self._epoch = (epoch, list(sampler))
        return self._epoch[1][place]

    def seed(self, group: int) -> int:
        """Seed of this group's sampling."""
        return self._seed * 1_000_003 + group // self.groups_per_update
