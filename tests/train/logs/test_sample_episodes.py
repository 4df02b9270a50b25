"""Sample episodes as text and as a table, from real episodes of a scripted policy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atommem.config import MemoryConfig
from atommem.envs.task import describe_task
from atommem.memory.contents import Contents
from atommem.train.logs.sample_episodes import COLUMNS, SampleEpisodes, best_and_worst, describe
from tests.atommem.test_episode import ANSWER, TASK, runner
from tests.train.toys import make_episode

CREATE = "<create_memory>Ann lives in Rome</create_memory><update_scratchpad>look for Ann</update_scratchpad>"


async def test_files_and_tables_tell_what_the_memory_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the first update and every so many."""
    tables: list[Any] = []
    monkeypatch.setattr(
        "atommem.train.logs.sample_episodes.report_table", lambda *table: tables.append(table)
    )
    episode = await runner([CREATE, "<read_memory>Ann</read_memory><create_memory>", ANSWER]).run(
        TASK, sample=4
    )
    settings: dict[str, Any] = {"count": 2, "every": 10, "report_to": ["wandb"]}
    words: Any = SimpleNamespace(decode=lambda token_ids: f"{len(token_ids)} tokens")
    hook = SampleEpisodes(tmp_path, [TASK], describe_task, words, MemoryConfig(), **settings)
    for update in range(21):
        hook(update, [episode])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-1.txt",
        "step-10.txt",
        "step-20.txt",
    ]
    text = (tmp_path / "step-10.txt").read_text()
    assert "Where does Ann live?" in text
    assert "Ann lives in Rome" in text
    assert "\x1b" not in text
    assert [table[:2] + table[3:] for table in tables] == [("episodes", COLUMNS, ["wandb"])] * 3
    assert [rows[0][0] for _, _, rows, _ in tables] == [1, 10, 20]
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in tables[1][2]]
    empty = describe(Contents())
    filled = "scratchpad: look for Ann\nquery: (none)\nentry 1: Ann lives in Rome"
    assert [row["memory_before"] for row in rows] == [
        empty,
        filled,
        filled.replace("(none)", "Ann"),
    ]
    assert rows[0]["memory_after"] == filled
    assert rows[0]["actions"] == "create: applied, scratchpad: applied"
    assert "malformed: " in rows[1]["actions"]
    assert [row["phase"] for row in rows] == ["reading", "reading", "answering"]
    assert {
        (row["update"], row["task"], row["sample"], row["reward"], row["stop"]) for row in rows
    } == {(10, "t1", 4, 1.0, "answered")}
    assert rows[0]["completion"] == CREATE


def test_the_best_and_the_worst() -> None:
    rewards = [0.2, None, 1.0, 0.0, 0.5]
    episodes = [
        make_episode("t", sample, reward, [(1, 1)]) for sample, reward in enumerate(rewards)
    ]
    assert [episode.reward for episode in best_and_worst(episodes, 3)] == [1.0, 0.0, 0.5]
    assert len(best_and_worst(episodes, 9)) == 4
    assert best_and_worst(episodes, 0) == []
