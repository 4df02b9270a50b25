"""The checker of environments: a sound one passes, and every promise that is broken on purpose is found."""

from __future__ import annotations

import asyncio
import importlib
import random
import time
from collections.abc import Callable
from dataclasses import make_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from atommem import cli
from atommem.actions import ANSWER_ACTION, ActionSpec, Body
from atommem.description import TaskDescription
from atommem.env_check import CHECKS, Finding, check_environment
from atommem.env_check.env_cli import main, read_settings
from atommem.environment import EnvironmentFactory, Score, StepResult, Turn, find_environment
from atommem.errors import ConfigError, OutageError
from atommem.observation import Observation, Piece, StopReason

with pytest.MonkeyPatch.context() as _path:
    _path.syspath_prepend(Path(__file__).parents[2] / "examples" / "atlas")
    atlas: Any = importlib.import_module("atommem_atlas")

Atlas, Journey = atlas.Atlas, atlas.Journey
FACTS = {"lookup": {"ada": "bern"}, "neighbours": {"bern": "arles como"}}
TASKS = [atlas.Task(name, "ada", FACTS) for name in "ab"]
TURNS = 4


def check(kind: type[EnvironmentFactory], **settings: Any) -> list[Finding]:
    return asyncio.run(check_environment(kind, **{"tasks": TASKS, "most_steps": 20, **settings}))


def test_a_sound_environment_passes_every_check() -> None:
    found = check(Atlas)
    assert [finding for finding in found if finding.level != "pass"] == []
    assert [finding.check for finding in found] == [check for check in CHECKS if check != "texts"]


def test_longdoc_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ours is held to it too, by the command, on tasks from a file, however it cuts and whenever it asks."""
    data = str(tmp_path / "tasks.jsonl")
    assert (
        cli.main(
            [
                "data",
                "synthetic",
                "--n",
                "4",
                "--distractors",
                "3",
                "--questions",
                "1-2",
                "--out",
                data,
            ]
        )
        == 0
    )
    arriving = [
        "--chunking",
        "documents",
        "--questions_shown",
        "arriving",
        "answering",
        "--open_ended",
        "true",
    ]
    for settings in (
        ["--chunking", "documents", "--max_reads", "2"],
        ["--chunk_tokens", "40"],
        arriving,
    ):
        assert main(["check", "longdoc", "--data", data, *settings]) == 0
        printed = capsys.readouterr().out
        assert f"{len(CHECKS) - 1} pass, 0 warn, 0 fail" in printed  # it has no tools to refuse


# Environments that break one promise each -------------------------------------------------------------------------


def broken(check: str, level: str, words: str, **members: Any) -> Any:
    """A parameter: an environment with other members; those of its episode are functions or begin with ``episode_``."""
    own = {
        name.removeprefix("episode_"): value
        for name, value in members.items()
        if name.startswith("episode_")
    }
    rest = {name: value for name, value in members.items() if not name.startswith("episode_")}
    journey = type("Broken", (Journey,), own)
    kind = type("Broken", (Atlas,), {"__call__": lambda self: journey(self.config.turns), **rest})
    return pytest.param(kind, check, level, words, id=f"{check}: {words}")


def declaring(name: str, kind: type, default: Any) -> type:
    """Settings with one more."""
    return make_dataclass("Settings", [(name, kind, default)], bases=(atlas.AtlasConfig,))


UNSAVED = declaring("where", Path, Path())
Address = type("Address", (atlas.Task,), {"__repr__": object.__repr__})


def aside(self: Any, text: Any) -> Observation:
    """What is shown where the person has another name."""
    self.task = replace(self.task, person=str(text))
    return self.observe([])  # type: ignore[no-any-return]


async def random_start(self: Any, task: Any) -> Observation:
    self.task = task
    return aside(self, random.random())


def stepping(result: Callable[[Any], Any]) -> Any:
    async def step(self: Any, turn: Turn) -> Any:
        self.left -= 1
        return result(self)

    return step


async def raises_on_long_texts(self: Any, turn: Turn) -> StepResult:
    if any(len(str(action.arguments)) > 500 for action in turn.actions):
        raise KeyError("no such word")
    return await Journey.step(self, turn)


async def silent_of_refusals(self: Any, turn: Turn) -> StepResult:
    return await Journey.step(self, Turn(turn.text, turn.actions))


async def stubborn(self: Any, turn: Turn) -> StepResult:
    try:
        await asyncio.sleep(0.005)
    except BaseException:
        await asyncio.sleep(0)
    return await Journey.step(self, turn)


async def holding_up(self: Any, task: Any) -> Observation:
    if not hasattr(type(self), "held"):
        type(self).held = True
        time.sleep(0.55)
    return await Journey.reset(self, task)  # type: ignore[no-any-return]


def randomly(self: Any) -> StepResult:
    return StepResult(aside(self, random.random()) if self.left else None)


def shared_count(self: Any) -> StepResult:
    """Counts the steps of one episode, as it believes, where all of them see it."""
    type(self).count = 1 if self.left == TURNS - 1 else type(self).count + 1
    return StepResult(aside(self, type(self).count) if self.left else None)


async def both(self: Any, turn: Turn) -> StepResult:
    result = await Journey.step(self, turn)
    return StepResult(result.observation, result.reason or StopReason.ANSWERED)


def scored(score: Any) -> Any:
    async def give(self: Any) -> Any:
        return score(self) if callable(score) else score

    return give


def showing(**changes: Any) -> Any:
    return lambda self, calls: replace(Journey.observe(self, calls), **changes)


def closing(values: dict[str, Any], needs: str | None = None) -> Any:
    return showing(closing=(Piece("act", values, needs),))


HINT = Observation("acting", stream=(Piece("hint"),))


def raising(error: Exception) -> Any:
    def call(*arguments: Any) -> Any:
        raise error

    return call


raises = raising(RuntimeError("never mind"))


def texts(*shown: Observation, **members: Any) -> dict[str, Any]:
    """Of an environment that reads texts, and is asked."""
    return {
        "reading": lambda *given: [*shown],
        "asking": lambda self, question: TASKS[0],
        **members,
    }


BROKEN = [
    broken("settings", "fail", "config_class is <class 'dict'>", config_class=dict),
    broken(
        "settings",
        "fail",
        "memory or embedder have capacity too",
        config_class=declaring("capacity", int, 3),
    ),
    broken("settings", "fail", "not JSON serializable", config_class=UNSAVED),
    broken("settings", "warn", "where have no help", config_class=UNSAVED),
    broken(
        "actions",
        "fail",
        "create name two actions",
        actions=(ActionSpec("create", Body.TEXT), ANSWER_ACTION),
    ),
    broken(
        "actions",
        "fail",
        "memory executes it",
        actions=(ActionSpec("say", Body.TEXT, "memory"), ANSWER_ACTION),
    ),
    broken(
        "actions",
        "fail",
        "is not valid",
        actions=(ActionSpec("say", Body.ARGUMENTS, schema={"type": "word"}),),
    ),
    broken(
        "actions",
        "fail",
        "for two actions",
        actions=(ActionSpec("say", Body.TEXT, tag="read_memory"),),
    ),
    broken(
        "actions",
        "warn",
        "say has no description",
        actions=(ActionSpec("say", Body.ARGUMENTS), ANSWER_ACTION),
    ),
    broken("actions", "fail", "there is no phase", phases=()),
    broken("templates", "fail", "full.yaml", templates=Path("nowhere")),
    broken("templates", "fail", "lacks {shout}", pieces={**Atlas.pieces, "question": ["shout"]}),
    broken("blank", "fail", "never mind", blank=raises),
    broken("blank", "fail", "of the phase 'other'", blank=lambda self, phase: Observation("other")),
    broken("tasks", "fail", "never mind", describe=staticmethod(raises)),
    broken(
        "tasks", "fail", "describe(a) is", describe=staticmethod(lambda task: TaskDescription("x"))
    ),
    broken("reset", "fail", "begins in different ways", episode_reset=random_start),
    broken("reset", "fail", "never mind", prepare=raises),
    broken("observations", "fail", "phase 'shouting'", episode_observe=showing(phase="shouting")),
    broken(
        "observations", "fail", "an observation is None", episode_observe=lambda self, calls: None
    ),
    broken(
        "observations",
        "fail",
        "piece 'hint' is not declared",
        episode_observe=showing(closing=(Piece("hint"),)),
    ),
    broken(
        "observations", "fail", "nothing for left", episode_observe=showing(closing=(Piece("act"),))
    ),
    broken("observations", "fail", "str '3' for left", episode_observe=closing({"left": "3"})),
    broken(
        "observations",
        "fail",
        "closing is [",
        episode_observe=showing(closing=[Piece("act", {"left": 1})]),
    ),
    broken("observations", "fail", "question 4 is asked", episode_observe=showing(question=4)),
    broken("observations", "fail", "needs 'shout'", episode_observe=closing({"left": 1}, "shout")),
    broken("step", "fail", "step() is not async", episode_step=lambda *given: None),
    broken("step", "fail", "KeyError: 'no such word'", episode_step=raises_on_long_texts),
    broken(
        "step",
        "fail",
        "step() gave Observation",
        episode_step=stepping(lambda self: self.observe([])),
    ),
    broken(
        "step",
        "fail",
        "for the reason",
        episode_step=stepping(lambda self: StepResult(None, StopReason.FAILED)),
    ),
    broken("step", "fail", "an observation and the reason answered", episode_step=both),
    broken(
        "step",
        "warn",
        "an outage: the words are gone",
        episode_step=stepping(raising(OutageError("the words are gone"))),
    ),
    broken(
        "end",
        "fail",
        "goes on after 20 steps",
        episode_step=stepping(lambda self: StepResult(self.observe([]))),
    ),
    broken("feedback", "warn", "nothing is said of it", episode_step=silent_of_refusals),
    broken("score", "fail", "score() gave 1.0", episode_score=scored(1.0)),
    broken("score", "fail", "the reward is 1.5", episode_score=scored(Score(1.5))),
    broken(
        "score",
        "fail",
        "ZeroDivisionError",
        episode_score=scored(lambda self: Score(1 / (TURNS - self.left))),
    ),
    broken("score", "fail", "answers has 2 values", episode_score=scored(Score(0.0, ("a", "b")))),
    broken("score", "fail", "an answer is [3]", episode_score=scored(Score(0.0, (3,)))),  # type: ignore[arg-type]
    broken("score", "fail", "em is None", episode_score=scored(Score(0.0, (), {"em": None}))),  # type: ignore[dict-item]
    broken("score", "warn", "who writes nothing earns 0.5", episode_score=scored(Score(0.5))),
    broken(
        "score", "fail", "diagnose() gave 2 values", diagnose=lambda self, task, episode: [{}, {}]
    ),
    broken("score", "fail", "diagnose: RuntimeError", diagnose=raises),
    broken("repeatable", "warn", "another way the second time", episode_step=stepping(randomly)),
    broken("apart", "fail", "another way beside", episode_step=stepping(shared_count)),
    broken("given up", "fail", "step() went on", episode_step=stubborn),
    broken("event loop", "warn", "reset() held everything up for 0.", episode_reset=holding_up),
    broken(
        "texts",
        "fail",
        "does not ask questions",
        reading=lambda *given: [],
        asking=EnvironmentFactory.asking,
    ),
    broken("texts", "fail", "piece 'hint' is not declared", **texts(HINT)),
    broken(
        "texts",
        "fail",
        "does not ask the question",
        **texts(episode_observe=showing(question=None)),
    ),
    broken("score", "fail", "the reward is None", episode_score=scored(Score(None))),
    broken("trace", "fail", "is unsupported", episode_observe=showing(label=Path("x"))),
]


@pytest.mark.parametrize(("kind", "name", "level", "words"), BROKEN)
def test_a_broken_promise_is_found(
    kind: type[EnvironmentFactory], name: str, level: str, words: str
) -> None:
    found = [finding for finding in check(kind) if finding.level != "pass"]
    assert any(
        (finding.check, finding.level) == (name, level) and words in finding.detail
        for finding in found
    )
    assert all(finding.remedy and len(finding.detail) < 600 for finding in found)
    # Little is blamed beside what is broken.
    assert len({finding.check for finding in found}) <= 3


def test_tasks_that_cannot_be_told_apart_or_are_not_there(tmp_path: Path) -> None:
    found = check(Atlas, tasks=None)
    assert [finding.check for finding in found if finding.level == "warn"] == ["tasks"]
    assert "step" not in [finding.check for finding in found], "only declarations are checked"
    found = check(Atlas, tasks=TASKS[:1] * 2)
    assert ("fail", "several tasks have the id a") in [
        (finding.level, finding.detail) for finding in found
    ]
    found = check(Atlas, tasks=[replace(TASKS[0], id=7)])
    assert (
        next(finding.detail for finding in found if finding.level == "fail")
        == "a task has the id 7"
    )
    found = check(Atlas, tasks=None, data=tmp_path / "none")
    assert found[-1].check == "tasks"
    assert found[-1].detail.startswith("DataError")
    kind = type(
        "Broken", (Atlas,), {"read_tasks": staticmethod(lambda path: [Address("a", "ada", FACTS)])}
    )
    (failed,) = (
        finding for finding in check(kind, tasks=None, data="x") if finding.level == "fail"
    )
    assert "repr" in failed.remedy


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="there is no 'nowhere'"):
        main(["check", "nowhere"])
    assert main(["list"]) == 0
    assert "longdoc" in capsys.readouterr().out
    kind = find_environment("longdoc").config_class
    read = read_settings(
        kind,
        "longdoc",
        ["--chunk_tokens", "5", "--open_ended", "true", "--questions_shown", "arriving"],
    )
    assert read == kind(
        environment="longdoc", chunk_tokens=5, open_ended=True, questions_shown=["arriving"]
    )  # type: ignore[call-arg]
    with pytest.raises(
        ConfigError, match=r"--volume 3 is no setting of atlas: it has turns, world"
    ):
        read_settings(atlas.AtlasConfig, "atlas", ["--volume", "3"])
    with pytest.raises(ConfigError, match="chunk_tokens is 0"):
        read_settings(kind, "longdoc", ["--chunk_tokens", "0"])
