"""Step credit and the compression reward against numbers by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atommem.episode import Observation, Piece
from atommem.memory.log import Operation
from papers.credit import compression_reward, state_advantages
from tests.train.toys import make_episode, make_step


def test_state_advantages_compare_steps_at_the_same_prompt() -> None:
    shared, left, right, alone = [1, 2], [1, 2, 3], [1, 2, 4], [12]
    paths = [(shared, left), (shared, left), (shared, right), (shared, alone), (shared, right)]
    rewards = [1.0, 0.0, 1.0, 0.5, None]
    episodes = [
        replace(make_episode("t", i, reward, []), steps=[make_step(prompt, [5]) for prompt in path])
        for i, (path, reward) in enumerate(zip(paths, rewards, strict=True))
    ]
    mean = 2.5 / 4
    assert state_advantages(episodes) == [
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
    assert compression_reward(episode, 0.2) == pytest.approx(0.5 + 0.2 * 0.75)
    assert compression_reward(make_episode("t", 0, None, []), 0.2) is None
