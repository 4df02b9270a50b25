"""Group-relative advantages, credit by state and for a small memory, against numbers by hand and by numpy."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atommem.memory.log import Operation
from atommem.observation import Observation, Piece
from atommem.train.objective.advantages import (
    group_advantages,
    has_variance,
    zero_variance_fraction,
)
from atommem.train.objective.credit import by_state, reward_of
from tests.train.toys import make_episode, make_step


def test_equal_rewards_give_exact_zeros() -> None:
    # 0.1 is not a binary fraction: the mean of three of them is not 0.1 in floating point.
    assert group_advantages([0.1, 0.1, 0.1, 0.1, None, 0.1], 3) == [0.0] * 6
    assert group_advantages([0.1] * 3, 3, "group") == [0.0] * 3
    # One scored episode has nothing to be compared with.
    assert group_advantages([1.0, None, None, None], 4) == [0.0] * 4
    assert group_advantages([None, None], 2) == [0.0, 0.0]


@given(
    st.lists(
        st.lists(st.none() | st.integers(0, 8).map(lambda n: n / 8), min_size=4, max_size=4),
        max_size=6,
    ),
    st.sampled_from(["none", "group", "batch"]),
)
def test_advantages_are_rewards_minus_their_group_s_mean(
    groups: list[list[float | None]], scale: str
) -> None:
    rewards = np.array(groups, dtype=float).reshape(-1, 4)
    with warnings.catch_warnings(action="ignore"):  # of groups without a reward
        expected = rewards - np.nanmean(rewards, axis=1, keepdims=True)
        over = {"none": 1.0, "group": np.nanstd(rewards, axis=1, ddof=1, keepdims=True) + 1e-4}
        over["batch"] = np.nanstd(rewards, ddof=1) + 1e-4
    advantages = group_advantages([reward for group in groups for reward in group], 4, scale)
    assert advantages == pytest.approx(
        np.nan_to_num(expected / over[scale]).ravel().tolist(), abs=1e-9
    )


def test_zero_variance_fraction() -> None:
    assert has_variance([1.0, None, 0.0])
    assert not has_variance([1.0, None, 1.0])
    assert zero_variance_fraction([1.0, 1.0, 0.0, 1.0, None, None, 0.0, None], 2) == 0.75
    assert zero_variance_fraction([], 2) == 0.0


def test_a_step_is_compared_with_those_at_the_same_prompt() -> None:
    shared, left, right, alone = [1, 2], [1, 2, 3], [1, 2, 4], [12]
    paths = [(shared, left), (shared, left), (shared, right), (shared, alone), (shared, right)]
    rewards = [1.0, 0.0, 1.0, 0.5, None]
    episodes = [
        replace(
            make_episode("t", sample, reward, []), steps=[make_step(prompt, [5]) for prompt in path]
        )
        for sample, (path, reward) in enumerate(zip(paths, rewards, strict=True))
    ]
    mean = 2.5 / 4
    assert by_state(episodes, rewards) == [
        [1 - mean, 0.5],
        [-mean, -0.5],
        [1 - mean, 0.0],  # the other one that came to it has failed
        [0.5 - mean, 0.0],
        [0.0, 0.0],
    ]


def test_a_smaller_memory_is_worth_more() -> None:
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
    assert reward_of(episode) == 0.5
    assert reward_of(episode, 0.2) == pytest.approx(0.5 + 0.2 * 0.75)
    assert reward_of(make_episode("t", 0, 0.5, [(1, 1)]), 0.2) == 0.5  # nothing was read
    assert reward_of(make_episode("t", 0, None, []), 0.2) is None
