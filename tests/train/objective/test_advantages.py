"""Group-relative advantages against numbers computed by hand and by numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atommem.train.objective.advantages import group_advantages, has_variance, zero_variance_fraction


def test_reward_minus_group_mean() -> None:
    advantages = group_advantages([1.0, 0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 0.5], 4)
    assert advantages == pytest.approx([0.75, -0.25, -0.25, -0.25, -0.25, 0.25, 0.25, -0.25])


def test_equal_rewards_give_exact_zeros() -> None:
    # 0.1 is not a binary fraction: the mean of three of them is not 0.1 in floating point.
    assert group_advantages([0.1, 0.1, 0.1, 0.1, None, 0.1], 3) == [0.0] * 6
    assert group_advantages([0.1] * 3, 3, "group") == [0.0] * 3


def test_one_scored_episode_has_nothing_to_be_compared_with() -> None:
    assert group_advantages([1.0, None, None, None], 4) == [0.0] * 4
    assert group_advantages([None, None], 2) == [0.0, 0.0]


def test_divided_by_the_groups_or_the_batchs_standard_deviation() -> None:
    rewards = [1.0, 0.0, 0.0, 0.5, 1.0, None]
    first, second = np.array(rewards[:3]), np.array([0.5, 1.0])
    by_group = [*(first - first.mean()) / (first.std(ddof=1) + 1e-4), *(second - 0.75) / (second.std(ddof=1) + 1e-4), 0]
    assert group_advantages(rewards, 3, "group") == pytest.approx(by_group)
    batch = np.array([1.0, 0.0, 0.0, 0.5, 1.0]).std(ddof=1) + 1e-4
    by_batch = [*(first - first.mean()) / batch, *(second - 0.75) / batch, 0]
    assert group_advantages(rewards, 3, "batch") == pytest.approx(by_batch)


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=40), st.integers(1, 8))
def test_advantages_of_a_group_sum_to_zero(rewards: list[float | None], group_size: int) -> None:
    rewards = rewards * group_size
    advantages = group_advantages(rewards, group_size)
    assert len(advantages) == len(rewards)
    for start in range(0, len(rewards), group_size):
        assert sum(advantages[start : start + group_size]) == pytest.approx(0.0, abs=1e-9)


def test_zero_variance_fraction() -> None:
    assert has_variance([1.0, None, 0.0])
    assert not has_variance([1.0, None, 1.0])
    assert zero_variance_fraction([1.0, 1.0, 0.0, 1.0, None, None, 0.0, None], 2) == 0.75
    assert zero_variance_fraction([], 2) == 0.0
