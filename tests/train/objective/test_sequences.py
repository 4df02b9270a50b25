"""Rows of episodes, and which of them are one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atommem.errors import DataError
from atommem.train.objective.sequences import EpisodeSize, Row, episode_rows, merge_equal_rows
from tests.train.toys import make_episode

EPISODES = [
    make_episode("a", 0, 1.0, [(5, 3), (7, 1), (6, 0)]),
    make_episode("a", 1, 0.0, [(5, 2)]),
    make_episode("a", 2, None, [(5, 4)]),
    make_episode("b", 0, 1.0, [(4, 6), (4, 2)]),
]


def test_sizes_leave_out_failed_episodes_and_empty_steps() -> None:
    sizes = [EpisodeSize.of(episode) for episode in EPISODES]
    assert sizes == [EpisodeSize(4, 2), EpisodeSize(2, 1), EpisodeSize(0, 0), EpisodeSize(8, 2)]


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (None, "has no gold answer"),
        *((bad, f"was given the reward {bad}") for bad in (float("nan"), float("inf"))),
    ],
)
def test_an_episode_that_ended_without_a_number_is_refused(
    reward: float | None, message: str
) -> None:
    """No outage: to leave it out would pass for a run that fails. NaN would spoil every advantage of its group."""
    episode = replace(make_episode("c", 0, 1.0, [(5, 3)]), reward=reward)
    with pytest.raises(DataError, match=f"task 'c' {message}"):
        EpisodeSize.of(episode)


def test_rows_are_the_sampled_ids_of_every_step() -> None:
    rows = episode_rows(EPISODES, [0.5, -0.5, 0.0, 0.25], "token")
    assert [(row.episode, row.advantage) for row in rows] == [
        (0, 0.5),
        (0, 0.5),
        (1, -0.5),
        (3, 0.25),
        (3, 0.25),
    ]
    steps = [
        step
        for episode in (EPISODES[0], EPISODES[1], EPISODES[3])
        for step in episode.steps
        if step.token_ids
    ]
    for row, step in zip(rows, steps, strict=True):
        assert row.prompt_ids.tolist() == step.prompt_ids
        assert row.completion_ids.tolist() == step.token_ids
        assert row.ids.tolist() == step.prompt_ids + step.token_ids
        assert row.logprobs.tolist() == pytest.approx(step.logprobs)
        assert len(row) == len(step.prompt_ids) + len(step.token_ids)


def test_rows_without_advantage_belong_to_the_kl_term() -> None:
    """Those of groups without variance, but not those of failed episodes."""
    rows = episode_rows(EPISODES, [0.5, 0.0, 0.0, 0.0], "token", with_kl=True)
    assert [(row.episode, row.advantage) for row in rows] == [
        (0, 0.5),
        (0, 0.5),
        (1, 0.0),
        (3, 0.0),
        (3, 0.0),
    ]


def test_equal_rows_add_up() -> None:
    rows = [
        Row([1, 2], [3], [-0.1], 0, 0.75, 1.0),
        Row([1], [2, 3], [-0.1, -0.1], 1, 0.5, 1.0),
        Row([1, 2], [3], [-0.1], 2, -0.25, 3.0),
    ]
    merged = merge_equal_rows(rows)
    assert [(row.prompt_ids.tolist(), row.completion_ids.tolist()) for row in merged] == [
        ([1, 2], [3]),
        ([1], [2, 3]),
    ]
    assert merged[0].weight == 4.0
    assert merged[0].weight * merged[0].advantage == pytest.approx(0.75 * 1.0 - 0.25 * 3.0)
    assert merged[1] is rows[1]
