"""The checker of environments: a sound one passes, and each kind of broken contract is found."""

from __future__ import annotations

import asyncio
import importlib
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atommem import cli
from atommem.check import CHECKS, Finding, check_environment, main
from atommem.environment import EnvironmentFactory, Score, StepResult, Turn
from atommem.errors import ConfigError, OutageError

with pytest.MonkeyPatch.context() as _path:
    _path.syspath_prepend(Path(__file__).parents[2] / "examples" / "atlas")
    atlas: Any = importlib.import_module("atommem_atlas")

Atlas, Journey = atlas.Atlas, atlas.Journey
FACTS = {"lookup": {"ada": "bern"}, "neighbours": {"bern": "arles como"}}
TASKS = [atlas.Task(name, "ada", FACTS) for name in "ab"]


def check(kind: type[EnvironmentFactory], **settings: Any) -> list[Finding]:
    return asyncio.run(check_environment(kind, **{"tasks": TASKS, "max_steps": 20, **settings}))


def broken(check: str, level: str, words: str, **members: Any) -> Any:
    """Make a case of an environment with other members (`episode_`: of its episode)."""
    prefix = "episode_"
    episode = {k.removeprefix(prefix): v for k, v in members.items() if k.startswith(prefix)}
    own = {name: value for name, value in members.items() if not name.startswith(prefix)}
    journey = type("Broken", (Journey,), episode)
    kind = type("Broken", (Atlas,), {"__call__": lambda self: journey(self.config.turns), **own})
    return pytest.param(kind, check, level, words, id=f"{check}: {words}")


def stepping(result: Any) -> Any:
    async def step(self: Any, turn: Turn) -> Any:
        self.left -= 1
        return result(self)

    return step


def scoring(score: Score) -> Any:
    async def give(self: Any) -> Score:
        return score

    return give


async def ignore_cancellation(self: Any, turn: Turn) -> StepResult:
    try:
        await asyncio.sleep(0.005)
    except BaseException:
        await asyncio.sleep(0)
    result: StepResult = await Journey.step(self, turn)
    return result


def shuffle(self: Any) -> StepResult:
    self.task = replace(self.task, person=str(random.random()))
    return StepResult(self.observe([]) if self.left else None)


def endless(self: Any) -> StepResult:
    return StepResult(self.observe([]))


def fail(error: Exception) -> Any:
    def call(*arguments: Any) -> Any:
        raise error

    return call


GONE = OutageError("words are gone")
BROKEN = [
    broken("tasks", "fail", "never mind", describe=staticmethod(fail(RuntimeError("never mind")))),
    broken("episodes", "fail", "goes on after", episode_step=stepping(endless)),
    broken("episodes", "warn", "words are gone", episode_step=stepping(fail(GONE))),
    broken("episodes", "fail", "reward=1.5", episode_score=scoring(Score(1.5))),
    broken("episodes", "warn", "doing nothing earns 0.5", episode_score=scoring(Score(0.5))),
    broken("repeatable", "fail", "another way", episode_step=stepping(shuffle)),
    broken("cancelled", "fail", "went on", episode_step=ignore_cancellation),
]


def test_check_sound_environment_passes() -> None:
    found = check(Atlas)
    assert [(finding.check, finding.level) for finding in found] == [(n, "pass") for n in CHECKS]


@pytest.mark.parametrize(("kind", "name", "level", "words"), BROKEN)
def test_check_broken_environment_is_reported(
    kind: type[EnvironmentFactory], name: str, level: str, words: str
) -> None:
    found = [finding for finding in check(kind) if finding.level != "pass"]
    assert any((f.check, f.level) == (name, level) and words in f.detail for f in found), found
    assert all(finding.fix and len(finding.detail) <= 500 for finding in found)


def test_check_tasks_without_an_id_or_file_are_reported(tmp_path: Path) -> None:
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


def test_env_check_unknown_name_or_setting_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert "longdoc" in capsys.readouterr().out
    for words, message in (
        ("nowhere", "environments=nowhere: unknown"),
        ("longdoc --volume 3", "--volume 3: unknown setting"),
        ("longdoc --chunk_tokens 0", "chunk_tokens=0"),
    ):
        with pytest.raises(ConfigError, match=message):
            main(["check", *words.split()])
