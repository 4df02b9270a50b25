"""The checker of environments: a sound one passes, and each kind of broken contract is found."""

import asyncio
import importlib
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from atommem import cli
from atommem.check import check_environment
from atommem.environment import EnvironmentConfig, EnvironmentFactory, Score, StepResult
from atommem.episode import Step
from atommem.errors import ConfigError, OutageError
from atommem.run import make_run, stored_settings

with pytest.MonkeyPatch.context() as _path:
    _path.syspath_prepend(Path(__file__).parents[2] / "examples" / "atlas")
    atlas: Any = importlib.import_module("atommem_atlas")

Atlas, Journey = atlas.Atlas, atlas.Journey
FACTS = {"lookup": {"ada": "bern"}, "neighbours": {"bern": "arles como"}}
TASKS = [atlas.Task(name, "ada", FACTS) for name in "ab"]


def check(kind: type[EnvironmentFactory], tasks: Any = TASKS) -> str | None:
    played = type("Played", (kind,), {"read_tasks": staticmethod(lambda path: tasks)})
    return asyncio.run(check_environment(played, data="tasks", max_steps=20))


async def shuffle(self: Any, step: Step) -> StepResult:
    self.left -= 1
    self.task = replace(self.task, person=str(random.random()))
    return StepResult(self.observe([]) if self.left else None)


async def endless(self: Any, step: Step) -> StepResult:
    self.left -= 1
    return StepResult(self.observe([]))


@pytest.mark.parametrize(
    ("members", "fault"),
    [
        ({"step": endless}, "episodes: a goes on after"),
        ({"step": AsyncMock(side_effect=OutageError("gone"))}, "episodes: an outage: gone"),
        ({"step": AsyncMock(side_effect=KeyError("x"))}, "episodes: KeyError at "),
        ({"score": AsyncMock(return_value=Score(1.5))}, "episodes: reward=1.5. Return 0 to 1"),
        ({"step": shuffle}, "repeatable: a went another way"),
    ],
)
def test_check_broken_environment_is_reported(members, fault):
    journey = type("Broken", (Journey,), members)
    kind = type("Broken", (Atlas,), {"__call__": lambda self: journey(self.config.turns)})
    assert (check(kind) or "").startswith(fault)


def test_check_sound_environment_passes_and_repeated_ids_do_not():
    assert check(Atlas) is None
    assert (check(Atlas, TASKS[:1] * 2) or "").startswith("read_tasks: ids repeat")


@dataclass
class Clashing(EnvironmentConfig):
    capacity: int = 7


class ClashingAtlas(Atlas):  # type: ignore[misc]
    config_class = Clashing


def test_setting_of_an_environment_with_another_ones_name_is_refused():
    name = f"{__name__}:ClashingAtlas"
    with pytest.raises(ConfigError, match="its setting capacity is one of this command too"):
        make_run({}, stored_settings(None, name))


def test_env_check_longdoc_passes(tmp_path, capsys):
    data = str(tmp_path / "tasks.jsonl")
    made = f"data synthetic --n 4 --distractors 3 --questions 1-2 --out {data}"
    assert cli.main(made.split()) == 0
    assert cli.main(["env", "check", "longdoc", "--data", data, "--chunking", "documents"]) == 0
    assert "longdoc keeps its promises\n" in capsys.readouterr().out
