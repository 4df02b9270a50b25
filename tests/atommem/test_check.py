"""The checker of environments: a sound one passes, and each kind of broken contract is found."""

from __future__ import annotations

import asyncio
import importlib
import random
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from atommem import cli
from atommem.check import CHECKS, Finding, check_environment, main
from atommem.environment import EnvironmentFactory, Score, StepResult
from atommem.episode import Step
from atommem.errors import OutageError

with pytest.MonkeyPatch.context() as _path:
    _path.syspath_prepend(Path(__file__).parents[2] / "examples" / "atlas")
    atlas: Any = importlib.import_module("atommem_atlas")

Atlas, Journey = atlas.Atlas, atlas.Journey
FACTS = {"lookup": {"ada": "bern"}, "neighbours": {"bern": "arles como"}}
TASKS = [atlas.Task(name, "ada", FACTS) for name in "ab"]


def check(kind: type[EnvironmentFactory], **settings: Any) -> list[Finding]:
    return asyncio.run(check_environment(kind, **{"tasks": TASKS, "max_steps": 20, **settings}))


async def ignore_cancellation(self: Any, step: Step) -> StepResult:
    try:
        await asyncio.sleep(0.005)
    except BaseException:
        await asyncio.sleep(0)
    result: StepResult = await Journey.step(self, step)
    return result


async def shuffle(self: Any, step: Step) -> StepResult:
    self.left -= 1
    self.task = replace(self.task, person=str(random.random()))
    return StepResult(self.observe([]) if self.left else None)


async def endless(self: Any, step: Step) -> StepResult:
    self.left -= 1
    return StepResult(self.observe([]))


GONE = AsyncMock(side_effect=OutageError("words are gone"))


@pytest.mark.parametrize(
    ("members", "name", "level", "words"),
    [
        ({"step": endless}, "episodes", "fail", "goes on after"),
        ({"step": GONE}, "episodes", "warn", "words are gone"),
        ({"score": AsyncMock(return_value=Score(1.5))}, "episodes", "fail", "reward=1.5"),
        ({"score": AsyncMock(return_value=Score(0.5))}, "episodes", "warn", "nothing earns 0.5"),
        ({"step": shuffle}, "repeatable", "fail", "another way"),
        ({"step": ignore_cancellation}, "cancelled", "fail", "went on"),
    ],
)
def test_check_broken_environment_is_reported(
    members: dict[str, Any], name: str, level: str, words: str
) -> None:
    journey = type("Broken", (Journey,), members)
    kind = type("Broken", (Atlas,), {"__call__": lambda self: journey(self.config.turns)})
    found = [finding for finding in check(kind) if finding.level != "pass"]
    assert any((f.check, f.level) == (name, level) and words in f.detail for f in found), found
    assert all(finding.fix for finding in found)


def test_check_tasks_without_an_id_or_file_are_reported(tmp_path: Path) -> None:
    assert {finding.level for finding in check(Atlas)} == {"pass"}
    found = check(Atlas, tasks=None)
    assert [finding.check for finding in found if finding.level == "warn"] == ["tasks"]
    assert any("ids repeat" in finding.detail for finding in check(Atlas, tasks=TASKS[:1] * 2))
    assert check(Atlas, tasks=None, data=tmp_path / "none")[-1].detail.startswith("DataError")


def test_env_check_longdoc_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(tmp_path / "tasks.jsonl")
    made = f"data synthetic --n 4 --distractors 3 --questions 1-2 --out {data}"
    assert cli.main(made.split()) == 0
    assert main(["check", "longdoc", "--data", data, "--chunking", "documents"]) == 0
    assert f"{len(CHECKS)} pass, 0 warn, 0 fail" in capsys.readouterr().out
