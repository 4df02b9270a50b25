"""Scores by source and the time split, from sums worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atommem.activity import ActivityClock
from atommem.config import MemoryConfig
from atommem.description import TaskDescription
from atommem.episode_stats import add_sums
from atommem.train.logs.rollout_log import EPISODES, SYNC, WAIT, RolloutLog, rollout_means
from tests.train.toys import make_episode

UNLIMITED = MemoryConfig()
TASKS = [TaskDescription(f"t{i}", source) for i, source in enumerate(["hotpotqa", "musique", ""])]


def clock_of(seconds: dict[str, float]) -> ActivityClock:
    """A clock that has timed each stage for so long."""
    clock = ActivityClock(
        iter([*(moment for value in seconds.values() for moment in (0.0, value)), 99.0]).__next__
    )
    for stage in seconds:
        with clock.busy(stage):
            pass
    return clock


def test_scores_by_source() -> None:
    """Two ranks; a failed episode and a task without a source count for no source."""
    first = [
        make_episode("t0", 0, 1.0, []),
        make_episode("t0", 1, 0.0, []),
        make_episode("t1", 0, 0.5, []),
    ]
    second = [
        make_episode("t0", 2, 1.0, []),
        make_episode("t1", 1, None, []),
        make_episode("t2", 0, 1.0, []),
    ]
    parts = [
        RolloutLog(TASKS, UNLIMITED).sums(episodes, ActivityClock()) for episodes in (first, second)
    ]
    means = {
        key: value
        for key, value in rollout_means(add_sums(parts), 2).items()
        if key[:2] in ("re", "em") and "/" in key
    }
    assert means == pytest.approx(
        {"reward/hotpotqa": 2 / 3, "em/hotpotqa": 2 / 3, "reward/musique": 0.5, "em/musique": 0.5}
    )


def test_the_time_split() -> None:
    """One rank: 2 s of sync, 10 s of episodes of which 6 generating, 1 s of waiting. The other: 2, 11, 8, 0."""

    def sums(seconds: dict[str, float], own: dict[str, float]) -> dict[str, float]:
        log = RolloutLog(TASKS, UNLIMITED)
        log.clock = clock_of(own)
        return log.sums([], clock_of(seconds))

    first = sums({"generate": 6.0, "embed": 1.0}, {SYNC: 2.0, EPISODES: 10.0, WAIT: 1.0})
    second = sums(
        {"generate": 8.0, "embed": 3.0, "retrieve": 0.5}, {SYNC: 2.0, EPISODES: 11.0, WAIT: 0.0}
    )
    means = rollout_means(add_sums([first, second]), 2)
    assert {key: value for key, value in means.items() if key.startswith("seconds/")} == {
        "seconds/sync": 2.0,
        "seconds/generate": 7.0,
        "seconds/embed": 2.0,
        "seconds/retrieve": 0.25,
        "seconds/idle": 4.0,  # (10 - 6 + 1 + 11 - 8) / 2
    }


def test_how_full_stores_are() -> None:
    """Mean over episodes that ended; one without a step left its store empty. Stores without a limit have no fill."""
    episodes = [
        make_episode("t0", 0, 1.0, [(1, 1)]),
        make_episode("t0", 1, 1.0, []),
        make_episode("t0", 2, None, []),
    ]
    episodes[0].steps[-1] = replace(episodes[0].steps[-1], store_size=3)
    for memory, fill in ((MemoryConfig(capacity=4), 3 / 8), (MemoryConfig(capacities=[6]), 1 / 4)):
        assert (
            rollout_means(RolloutLog(TASKS, memory).sums(episodes, ActivityClock()), 1)[
                "store_fill"
            ]
            == fill
        )
    assert "store_fill" not in rollout_means(
        RolloutLog(TASKS, UNLIMITED).sums(episodes, ActivityClock()), 1
    )
