"""Scores by source, the fill of stores and the time split; sample episodes as text and tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atommem.activity import ActivityClock
from atommem.config import MemoryConfig
from atommem.description import TaskDescription
from atommem.envs.task import describe_task
from atommem.episode_stats import add_sums
from atommem.memory.log import Contents
from atommem.train.logs.episodes import (
    COLUMNS,
    EPISODES,
    SYNC,
    WAIT,
    RolloutLog,
    SampleEpisodes,
    best_and_worst,
    describe,
    rollout_means,
)
from tests.atommem.test_episode import ANSWER, TASK, runner
from tests.train.toys import make_episode

TASKS = [TaskDescription(f"t{i}", source) for i, source in enumerate(["hotpotqa", "musique", ""])]


def clock_of(seconds: dict[str, float]) -> ActivityClock:
    """Return a clock that has timed each stage for so long."""
    times = [moment for value in seconds.values() for moment in (0.0, value)]
    clock = ActivityClock(iter([*times, 99.0]).__next__)
    for stage in seconds:
        with clock.busy(stage):
            pass
    return clock


def test_rollout_means_by_source_omit_failed_episodes() -> None:
    first = [make_episode("t0", i, reward, []) for i, reward in enumerate((1.0, 0.0))]
    second = [make_episode("t0", 2, 1.0, []), make_episode("t1", 1, None, [])]
    second += [make_episode("t1", 0, 0.5, []), make_episode("t2", 0, 1.0, [])]
    logs = [RolloutLog(TASKS, MemoryConfig()).sums(e, ActivityClock()) for e in (first, second)]
    means = rollout_means(add_sums(logs), 2)
    found = {key: value for key, value in means.items() if key.startswith(("reward/", "em/"))}
    expected = {"reward/hotpotqa": 2 / 3, "em/hotpotqa": 2 / 3}
    assert found == pytest.approx(expected | {"reward/musique": 0.5, "em/musique": 0.5})


def test_rollout_means_split_the_time_over_two_ranks() -> None:
    def sums(seconds: dict[str, float], own: dict[str, float]) -> dict[str, float]:
        log = RolloutLog(TASKS, MemoryConfig())
        log.clock = clock_of(own)
        return log.sums([], clock_of(seconds))

    first = sums({"generate": 6.0, "embed": 1.0}, {SYNC: 2.0, EPISODES: 10.0, WAIT: 1.0})
    second = sums({"generate": 8.0, "embed": 3.0}, {SYNC: 2.0, EPISODES: 11.0, WAIT: 0.0})
    means = rollout_means(add_sums([first, second]), 2)
    assert {key: value for key, value in means.items() if key.startswith("seconds/")} == {
        "seconds/sync": 2.0,
        "seconds/generate": 7.0,
        "seconds/embed": 2.0,
        "seconds/retrieve": 0.0,
        "seconds/idle": 4.0,  # (10 - 6 + 1 + 11 - 8) / 2
    }


def test_store_fill_is_a_mean_over_scored_episodes() -> None:
    episodes = [
        make_episode("t0", 0, 1.0, [(1, 1)]),
        make_episode("t0", 1, 1.0, []),
        make_episode("t0", 2, None, []),
    ]
    episodes[0].steps[-1] = replace(episodes[0].steps[-1], store_size=3)

    def fill(memory: MemoryConfig) -> float | None:
        sums = RolloutLog(TASKS, memory).sums(episodes, ActivityClock())
        return rollout_means(sums, 1).get("store_fill")

    assert fill(MemoryConfig(capacity=4)) == 3 / 8
    assert fill(MemoryConfig(capacities=[6])) == 1 / 4
    assert fill(MemoryConfig()) is None


CREATE = (
    "<create_memory>Ann lives in Rome</create_memory>"
    "<update_scratchpad>look for Ann</update_scratchpad>"
)


async def test_sample_episodes_show_the_memory_of_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables: list[Any] = []
    monkeypatch.setattr(
        "atommem.train.logs.episodes.report_table", lambda *table: tables.append(table)
    )
    steps = [CREATE, "<read_memory>Ann</read_memory><create_memory>", ANSWER]
    episode = await runner(steps).run(TASK, sample=4)
    words: Any = SimpleNamespace(decode=lambda token_ids: f"{len(token_ids)} tokens")
    settings: dict[str, Any] = {"count": 2, "every": 10, "report_to": ["wandb"]}
    hook = SampleEpisodes(tmp_path, [TASK], describe_task, words, MemoryConfig(), **settings)
    for update in range(21):
        hook(update, [episode])
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["step-1.txt", "step-10.txt", "step-20.txt"]
    text = (tmp_path / "step-10.txt").read_text()
    assert "Where does Ann live?" in text
    assert "Ann lives in Rome" in text
    assert "\x1b" not in text
    assert [table[:2] + table[3:] for table in tables] == [("episodes", COLUMNS, ["wandb"])] * 3
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in tables[1][2]]
    filled = "scratchpad: look for Ann\nquery: (none)\nentry 1: Ann lives in Rome"
    before = [describe(Contents()), filled, filled.replace("(none)", "Ann")]
    assert [row["memory_before"] for row in rows] == before
    assert rows[0]["memory_after"] == filled
    assert rows[0]["actions"] == "create: applied, scratchpad: applied"
    assert "malformed: " in rows[1]["actions"]
    first = rows[0]
    assert [first[name] for name in ("update", "task", "sample", "reward")] == [10, "t1", 4, 1.0]


def test_best_and_worst_alternate() -> None:
    rewards = [0.2, None, 1.0, 0.0, 0.5]
    episodes = [make_episode("t", i, reward, [(1, 1)]) for i, reward in enumerate(rewards)]
    assert [episode.reward for episode in best_and_worst(episodes, 3)] == [1.0, 0.0, 0.5]
    assert len(best_and_worst(episodes, 9)) == 4
