"""Groups -> samples, advantages and normaliser, by hand."""

from __future__ import annotations

import pytest

from atommem.episode import Episode
from atommem.observation import StopReason
from atommem.train.loops.asynchronous.updates import Group, make_update
from tests.train.toys import make_episode


def group(index: int, *rewards: float | None, lengths: tuple[tuple[int, int], ...] = ((3, 2),)) -> Group:
    episodes = [make_episode(f"t{index}", sample, reward, lengths) for sample, reward in enumerate(rewards)]
    return Group(index, episodes, [[4] * len(lengths) for _ in episodes], started=4)


def test_a_step_becomes_a_sample() -> None:
    one = group(7, 1.0, 0.0)
    update = make_update([one], "none", "token")
    assert len(update.samples) == 2
    sample, step = update.samples[0], one.episodes[0].steps[0]
    assert (sample.group_id, sample.model_version, sample.advantage) == (7, 4, 0.5)
    assert update.samples[1].advantage == -0.5
    packed = sample.tree_input()
    assert packed["input_ids"].tolist() == step.prompt_ids + step.token_ids
    assert packed["completion_mask"].tolist() == [0, 0, 0, 1, 1]
    assert packed["old_log_probs"].tolist() == [0.0, 0.0, 0.0, -1.0, -1.0]


def test_groups_without_variance_are_not_sent_but_counted() -> None:
    update = make_update([group(0, 1.0, 0.0), group(1, 1.0, 1.0)], "none", "token")
    assert {sample.group_id for sample in update.samples} == {0}
    assert update.normalizer == 8.0  # all four episodes have two tokens each


def test_a_failed_episode_counts_nowhere() -> None:
    update = make_update([group(0, 1.0, None, 0.0, 0.0)], "none", "token")
    assert [sample.advantage for sample in update.samples] == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert update.normalizer == 6.0


def test_overlong_episodes_count_in_the_mean_but_are_not_trained_on() -> None:
    one = group(0, 1.0, 0.0)
    one.episodes[1].stop_reason = StopReason.TOKEN_LIMIT
    update = make_update([one], "none", "token", overlong_filtering=True)
    assert [sample.advantage for sample in update.samples] == [0.5]
    assert update.normalizer == 2.0


def test_weights_are_part_of_the_advantage() -> None:
    long, short = make_episode("t", 0, 1.0, [(2, 4), (2, 2)]), make_episode("t", 1, 0.0, [(2, 3)])
    update = make_update([Group(0, [long, short], [[1, 1], [1]], 1)], "none", "step")
    assert [sample.advantage for sample in update.samples] == pytest.approx([0.5 / 4, 0.5 / 2, -0.5 / 3])
    assert update.normalizer == 3.0


def test_versions_belong_to_steps() -> None:
    episode = make_episode("t", 0, 1.0, [(2, 1), (2, 0), (2, 1)])  # the second step has no token: no sample
    other = make_episode("t", 1, 0.0, [(2, 1)])
    mixed = Group(0, [episode, other], [[3, 4, 5], [5]], started=3)
    assert [sample.model_version for sample in make_update([mixed], "none", "token").samples] == [3, 5, 5]
    assert mixed.oldest == 3


def test_a_completion_that_a_time_limit_cut_off_is_no_step() -> None:
    one = Group(0, group(0, 1.0, 0.0).episodes, [[4, 5], [4]], started=4)
    assert [sample.model_version for sample in make_update([one], "none", "token").samples] == [4, 4]


def test_a_group_without_a_step_is_as_old_as_its_start() -> None:
    failed = [Episode("t", 0), Episode("t", 1)]
    assert Group(0, failed, [[], []], started=9).oldest == 9
    assert make_update([Group(0, failed, [[], []], started=9)], "none", "token").samples == []
