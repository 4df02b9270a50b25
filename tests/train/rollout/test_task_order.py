"""Which task and seed a group has."""

from __future__ import annotations

from trl.trainer.utils import RepeatSampler

from atommem.train.rollout.task_order import TaskOrder


def test_every_epoch_has_each_task_once_in_an_order_of_its_own() -> None:
    order = TaskOrder(tasks=12, groups_per_update=3, shuffle=True, seed=7)
    first, second = ([order.task(12 * epoch + i) for i in range(12)] for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second != list(range(12))
    again = TaskOrder(tasks=12, groups_per_update=3, shuffle=True, seed=7)
    assert [again.task(12 + i) for i in range(12)] == second  # a resumed run begins anywhere


def test_seeds_are_those_of_the_update() -> None:
    order = TaskOrder(tasks=4, groups_per_update=2, shuffle=False, seed=3)
    assert [order.seed(group) - 3 * 1_000_003 for group in range(6)] == [0, 0, 1, 1, 2, 2]


def test_the_first_epoch_has_trls_order() -> None:
    theirs = list(RepeatSampler(range(12), mini_repeat_count=1, batch_size=3, shuffle=True, seed=7))
    order = TaskOrder(tasks=12, groups_per_update=3, shuffle=True, seed=7)
    assert [order.task(i) for i in range(12)] == theirs
