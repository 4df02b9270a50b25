"""Scores by source; sample episodes as text."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atommem.config import MemoryConfig
from atommem.environment import TaskDescription
from atommem.envs.task import describe_task
from atommem.episode import add_sums
from atommem.process import ActivityClock
from atommem.train.logs.episodes import (
    RolloutLog,
    SampleEpisodes,
    best_and_worst,
    rollout_means,
)
from tests.atommem.test_episode import ANSWER, TASK, runner
from tests.train.toys import make_episode

TASKS = [TaskDescription(f"t{i}", source) for i, source in enumerate(["hotpotqa", "musique", ""])]


def test_rollout_means_by_source_omit_failed_episodes() -> None:
    first = [make_episode("t0", i, reward, []) for i, reward in enumerate((1.0, 0.0))]
    second = [make_episode("t0", 2, 1.0, []), make_episode("t1", 1, None, [])]
    second += [make_episode("t1", 0, 0.5, []), make_episode("t2", 0, 1.0, [])]
    logs = [RolloutLog(TASKS, MemoryConfig()).sums(e, ActivityClock()) for e in (first, second)]
    means = rollout_means(add_sums(logs), 2)
    found = {key: value for key, value in means.items() if key.startswith(("reward/", "em/"))}
    expected = {"reward/hotpotqa": 2 / 3, "em/hotpotqa": 2 / 3}
    assert found == pytest.approx(expected | {"reward/musique": 0.5, "em/musique": 0.5})


async def test_sample_episodes_show_the_memory_of_every_step(tmp_path: Path) -> None:
    create = "<create_memory>Ann lives in Rome</create_memory>"
    episode = await runner([create, "<read_memory>Ann</read_memory>", ANSWER]).run(TASK)
    words: Any = SimpleNamespace(decode=lambda token_ids: f"{len(token_ids)} tokens")
    settings: dict[str, Any] = {"count": 2, "every": 10, "report_to": []}
    hook = SampleEpisodes(tmp_path, [TASK], describe_task, words, MemoryConfig(), **settings)
    for update in range(21):
        hook(update, [episode])
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["step-1.txt", "step-10.txt", "step-20.txt"]
    text = (tmp_path / "step-10.txt").read_text()
    assert "Where does Ann live?" in text
    assert text.count("Ann lives in Rome") > 2
    assert "\x1b" not in text


def test_best_and_worst_of_rewards_alternate() -> None:
    rewards = [0.2, None, 1.0, 0.0, 0.5]
    episodes = [make_episode("t", i, reward, [(1, 1)]) for i, reward in enumerate(rewards)]
    assert [episode.reward for episode in best_and_worst(episodes, 3)] == [1.0, 0.0, 0.5]
    assert len(best_and_worst(episodes, 9)) == 4
