"""Group-relative advantages, credit by state and for a small memory, against numbers by hand and by numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atommem.memory.operations import Operation
from atommem.observation import Observation, Piece
from atommem.train.objective.advantages import group_advantages, has_variance, zero_variance_fraction
from atommem.train.objective.credit import by_state, reward_of
from tests.train.toys import make_episode, make_step


def test_reward_minus_group_mean() -> None:
    advantages = group_advantages([1.0, 0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 0.5], 4)
    assert advantages == pytest.approx([0.75, -0.25, -0.25, -0.25, -0.25, 0.25, 0.25, -0.25])


def test_equal_rewards_give_exact_zeros() -> None:
    # 0.1 is not a binary fraction: the mean of three of them is not 0.1 in floating point.
    assert group_advantages([0.1, 0.1, 0.1, 0.1, None, 0.1], 3) == [0.0] * 6
    assert group_advantages([0.1] * 3, 3, "group") == [0.0] * 3
    # One scored episode has nothing to be compared with.
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


def test_a_step_is_compared_with_those_at_the_same_prompt() -> None:
    shared, left, right, alone = [1, 2], [1, 2, 3], [1, 2, 4], [12]
    paths = [(shared, left), (shared, left), (shared, right), (shared, alone), (shared, right)]
    rewards = [1.0, 0.0, 1.0, 0.5, None]
    episodes = [
        replace(make_episode("t", sample, reward, []), steps=[make_step(prompt, [5]) for prompt in path])
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
