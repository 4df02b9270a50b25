"""Rows of episodes, and which of them are merged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atommem.errors import DataError
from atommem.train.objective.rows import EpisodeSize, Row, episode_rows, merge_equal_rows
from tests.train.toys import make_episode

EPISODES = [
    make_episode("a", 0, 1.0, [(5, 3), (7, 1), (6, 0)]),
    make_episode("a", 1, 0.0, [(5, 2)]),
    make_episode("a", 2, None, [(5, 4)]),
    make_episode("b", 0, 1.0, [(4, 6), (4, 2)]),
]


def by_step(*advantages: float) -> list[list[float]]:
    return [[a] * len(e.steps) for e, a in zip(EPISODES, advantages, strict=True)]


def test_episode_size_omits_failed_episodes_and_empty_steps() -> None:
    sizes = [EpisodeSize.of(episode) for episode in EPISODES]
    assert sizes == [EpisodeSize(4, 2), EpisodeSize(2, 1), EpisodeSize(0, 0), EpisodeSize(8, 2)]


@pytest.mark.parametrize(
    ("reward", "message"), [(None, "it has no gold answer"), (float("nan"), "reward nan is not")]
)
def test_episode_size_without_a_finite_reward_is_refused(
    reward: float | None, message: str
) -> None:
    episode = replace(make_episode("c", 0, 1.0, [(5, 3)]), reward=reward)
    with pytest.raises(DataError, match=rf"task 'c': .*{message}"):
        EpisodeSize.of(episode)


def test_episode_rows_hold_the_sampled_ids_of_trained_steps() -> None:
    rows = episode_rows(EPISODES, by_step(0.5, -0.5, 0.0, 0.25), "token")
    found = [(row.episode, row.advantage) for row in rows]
    assert found == [(0, 0.5), (0, 0.5), (1, -0.5), (3, 0.25), (3, 0.25)]
    steps = [s for i in (0, 1, 3) for s in EPISODES[i].steps if s.token_ids]
    for row, step in zip(rows, steps, strict=True):
        assert row.prompt_ids.tolist() == step.prompt_ids
        assert row.completion_ids.tolist() == step.token_ids
        assert row.ids.tolist() == step.prompt_ids + step.token_ids
        assert row.logprobs.tolist() == pytest.approx(step.logprobs)


def test_episode_rows_with_kl_keep_groups_without_variance() -> None:
    rows = episode_rows(EPISODES, by_step(0.5, 0.0, 0.0, 0.0), "token", with_kl=True)
    found = [(row.episode, row.advantage) for row in rows]
    assert found == [(0, 0.5), (0, 0.5), (1, 0.0), (3, 0.0), (3, 0.0)]


def test_merge_equal_rows_adds_up_weighted_advantages() -> None:
    rows = [
        Row([1, 2], [3], [-0.1], 0, 0.75, 1.0),
        Row([1], [2, 3], [-0.1, -0.1], 1, 0.5, 1.0),
        Row([1, 2], [3], [-0.1], 2, -0.25, 3.0),
    ]
    merged = merge_equal_rows(rows)
    ids = [(row.prompt_ids.tolist(), row.completion_ids.tolist()) for row in merged]
    assert ids == [([1, 2], [3]), ([1], [2, 3])]
    assert merged[0].weight == 4.0
    assert merged[0].weight * merged[0].advantage == pytest.approx(0.75 * 1.0 - 0.25 * 3.0)
    assert merged[1] is rows[1]
