"""Advantages against numbers by hand and by numpy."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atommem.train.objective.advantages import group_advantages


def test_group_advantages_of_equal_rewards_are_exactly_zero() -> None:
    # The mean of three times 0.1 is not 0.1 in floating point.
    assert group_advantages([0.1, 0.1, 0.1, 0.1, None, 0.1], 3) == [0.0] * 6
    assert group_advantages([0.1] * 3, 3, "group") == [0.0] * 3
    assert group_advantages([1.0, None, None, None], 4) == [0.0] * 4


@given(
    st.lists(
        st.lists(st.none() | st.integers(0, 8).map(lambda n: n / 8), min_size=4, max_size=4),
        max_size=6,
    ),
    st.sampled_from(["none", "group", "batch"]),
)
def test_group_advantages_are_rewards_minus_the_mean_of_the_group(
    groups: list[list[float | None]], scale: str
) -> None:
    rewards = np.array(groups, dtype=float).reshape(-1, 4)
    with warnings.catch_warnings(action="ignore"):  # of groups without a reward
        expected = rewards - np.nanmean(rewards, axis=1, keepdims=True)
        over = {
            "none": 1.0,
            "group": np.nanstd(rewards, axis=1, ddof=1, keepdims=True) + 1e-4,
            "batch": np.nanstd(rewards, ddof=1) + 1e-4,
        }
    advantages = group_advantages([reward for group in groups for reward in group], 4, scale)
    scaled = np.nan_to_num(expected / over[scale]).ravel().tolist()
    assert advantages == pytest.approx(scaled, abs=1e-9)
