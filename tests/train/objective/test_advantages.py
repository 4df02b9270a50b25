"""Advantages and rewards against numbers by hand and by numpy."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atommem.episode import Observation, Piece
from atommem.memory.log import Operation
from atommem.train.objective.advantages import (
    compression_reward,
    group_advantages,
    state_advantages,
)
from tests.train.toys import make_episode, make_step


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


def test_state_advantages_compare_steps_at_the_same_prompt() -> None:
    shared, left, right, alone = [1, 2], [1, 2, 3], [1, 2, 4], [12]
    paths = [(shared, left), (shared, left), (shared, right), (shared, alone), (shared, right)]
    rewards = [1.0, 0.0, 1.0, 0.5, None]
    episodes = [
        replace(make_episode("t", i, reward, []), steps=[make_step(prompt, [5]) for prompt in path])
        for i, (path, reward) in enumerate(zip(paths, rewards, strict=True))
    ]
    mean = 2.5 / 4
    assert state_advantages(episodes, rewards) == [
        [1 - mean, 0.5],
        [-mean, -0.5],
        [1 - mean, 0.0],  # the other one that reached it failed
        [0.5 - mean, 0.0],
        [0.0, 0.0],
    ]


def test_compression_reward_is_larger_for_a_smaller_store() -> None:
    step = replace(
        make_step([1], [2]),
        observation=Observation("reading", stream=(Piece("chunk", {"text": "x" * 40, "part": 1}),)),
        operations=(
            Operation(0, "create", entry_id=1, after="y" * 10),
            Operation(0, "create", entry_id=2, after="z" * 6),
            Operation(0, "delete", entry_id=2, before="z" * 6),
        ),
    )
    episode = replace(make_episode("t", 0, 0.5, []), steps=[step])
    assert compression_reward(episode, 0.0) == 0.5
    assert compression_reward(episode, 0.2) == pytest.approx(0.5 + 0.2 * 0.75)
    assert compression_reward(make_episode("t", 0, 0.5, [(1, 1)]), 0.2) == 0.5  # nothing was read
    assert compression_reward(make_episode("t", 0, None, []), 0.2) is None
