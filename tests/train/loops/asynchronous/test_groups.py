"""Groups -> rows, advantages and normaliser, by hand."""

from __future__ import annotations

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
