"""Groups -> rows, advantages and normaliser, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atommem.episode import Episode, StopReason
from atommem.train.episode_config import EpisodeConfig
from atommem.train.loops.asynchronous.groups import Group, batch_of
from tests.train.toys import make_episode

SETTINGS = EpisodeConfig(normalization="token")


def group(index: int, *rewards: float | None) -> Group:
    episodes = [make_episode(f"t{index}", sample, reward, [(3, 2)]) for sample, reward in enumerate(rewards)]
    return Group(index, episodes, [[4] for _ in episodes])


def test_groups_without_variance_are_not_trained_on_but_counted() -> None:
    varied = group(0, 1.0, 0.0)
    batch = batch_of([varied, group(1, 1.0, 1.0)], SETTINGS)
    assert [row.advantage for row in batch.rows] == [0.5, -0.5]
    prompts = [episode.steps[0].prompt_ids for episode in varied.episodes]
    assert [row.prompt_ids.tolist() for row in batch.rows] == prompts
    assert batch.normalizer == 8.0  # all four episodes have two tokens each


def test_a_failed_episode_counts_nowhere() -> None:
    batch = batch_of([group(0, 1.0, None, 0.0, 0.0)], SETTINGS)
    assert [row.advantage for row in batch.rows] == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert batch.normalizer == 6.0


def test_overlong_episodes_count_in_the_mean_but_are_not_trained_on() -> None:
    one = group(0, 1.0, 0.0)
    one.episodes[1].stop_reason = StopReason.TOKEN_LIMIT
    batch = batch_of([one], replace(SETTINGS, overlong_filtering=True))
    assert [row.advantage for row in batch.rows] == [0.5]
    assert batch.normalizer == 2.0


def test_a_group_without_a_step_brings_nothing() -> None:
    failed = Group(0, [Episode("t", 0), Episode("t", 1)], [[], []])
    assert batch_of([failed], SETTINGS).rows == []
