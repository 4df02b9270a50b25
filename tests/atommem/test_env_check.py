"""The checker of environments: a sound one passes, and every promise that is broken on purpose is found."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from atommem import cli
from atommem.actions import ANSWER, ANSWER_ACTION, ActionSpec, Body, first
from atommem.description import QuestionDescription, TaskDescription
from atommem.env_check import CHECKS, Finding, check_environment
from atommem.env_check.env_cli import main, read_settings
from atommem.environment import EnvironmentConfig, EnvironmentFactory, Score, StepResult, Turn
from atommem.errors import ConfigError, DataError, OutageError
from atommem.observation import Observation, Piece, StopReason

SECTION = """pieces:
  word: "word {word}"
  said: "said {lines}"
  line: "line {text}"
  left: "left {left}"
"""
SAY = ActionSpec("say", Body.ARGUMENTS, description="Says it.", schema={"properties": {"text": {"type": "string"}}})


@dataclass(frozen=True)
class Word:
    id: str


@dataclass
class EchoConfig(EnvironmentConfig):
    turns: int = field(default=3, metadata={"help": "Steps."})
    loud: bool = field(default=False, metadata={"help": "Shout."})
    words: list[str] = field(default_factory=list, metadata={"help": "Known ones."})

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise ConfigError(f"turns is {self.turns}: give at least 1.")


class Episode:
    """Says what it was told to say; the right answer is the task's id."""

    def __init__(self, shared: Echo) -> None:
        self.shared = shared
        self.answer: str | None = None

    async def reset(self, task: Word) -> Observation:
        self.task, self.left = task, self.shared.config.turns
        return self.observe(())

    async def step(self, turn: Turn) -> StepResult:
        answer = first(turn.actions, ANSWER)
        self.left -= 1
        if answer is not None or not self.left:
            self.answer = answer and answer.text
            return StepResult(None, StopReason.ANSWERED if answer else StopReason.UNANSWERED)
        await asyncio.sleep(0)
        return StepResult(self.observe([str(getattr(call, "arguments", "no")) for call in turn.calls]))

    async def score(self) -> Score:
        em = float(self.answer == self.task.id)
        return Score(em, (self.answer,), {"em": em}, ({"em": em},))

    def observe(self, said: Sequence[str]) -> Observation:
        lines = tuple(Piece("line", {"text": text}) for text in said)
        return Observation(
            "talking",
            task=(Piece("word", {"word": self.task.id}),),
            stream=(Piece("said", {"lines": lines}),),
            closing=(Piece("left", {"left": self.left}),),
            question=0,
        )


class Echo(EnvironmentFactory):
    """Says what it is told to say."""

    config_class: ClassVar[type[EnvironmentConfig]] = EchoConfig
    templates: ClassVar[Path]
    pieces: ClassVar = {"word": ["word"], "said": ["lines"], "line": ["text"], "left": ["left"]}
    inside: ClassVar = {"line": "said"}
    numbers: ClassVar[Sequence[str]] = ("left",)
    phases: ClassVar[Sequence[str]] = ("talking",)
    actions: Any = (SAY, ANSWER_ACTION)
    episode: ClassVar[type[Episode]] = Episode

    def __call__(self) -> Any:
        return self.episode(self)

    @staticmethod
    def read_tasks(path: str | Path) -> Sequence[Any]:
        try:
            return [Word(line) for line in Path(path).read_text().split()]
        except OSError as error:
            raise DataError(f"{path}: {error}") from error

    @staticmethod
    def describe(task: Any) -> TaskDescription:
        return TaskDescription(task.id, "echo", (QuestionDescription("which word", (task.id,)),))


@pytest.fixture(autouse=True)
def wording(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("templates")
    for name in ("full", "compact"):
        (folder / f"{name}.yaml").write_text(SECTION)
    monkeypatch.setattr(Echo, "templates", folder, raising=False)


def check(kind: type[EnvironmentFactory], **settings: Any) -> list[Finding]:
    settings = {"tasks": [Word("a"), Word("b")], "most_steps": 20, **settings}
    return asyncio.run(check_environment(kind, **settings))


def test_a_sound_environment_passes_every_check() -> None:
    found = check(Echo)
    assert [finding for finding in found if finding.level != "pass"] == []
    assert [finding.check for finding in found] == [check for check in CHECKS if check != "texts"]


def test_longdoc_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ours is held to it too, by the command, on tasks from a file, however it cuts and whenever it asks."""
    data = str(tmp_path / "tasks.jsonl")
    assert cli.main(["data", "synthetic", "--n", "4", "--distractors", "3", "--questions", "1-2", "--out", data]) == 0
    arriving = ["--chunking", "documents", "--questions_shown", "arriving", "answering", "--open_ended", "true"]
    for settings in (["--chunking", "documents", "--max_reads", "2"], ["--chunk_tokens", "40"], arriving):
        assert main(["check", "longdoc", "--data", data, *settings]) == 0
        printed = capsys.readouterr().out
        assert f"{len(CHECKS) - 1} pass, 0 warn, 0 fail" in printed  # it has no tools to refuse


# Environments that break one promise each -------------------------------------------------------------------------


def broken(check: str, level: str, words: str, **members: Any) -> Any:
    """A parameter: an environment with other members; those of its episode are functions or begin with ``episode_``."""
    own = {name.removeprefix("episode_"): value for name, value in members.items() if name.startswith("episode_")}
    rest = {name: value for name, value in members.items() if not name.startswith("episode_")}
    kind = type("Broken", (Echo,), {**rest, "episode": type("Broken", (Episode,), own)})
    return pytest.param(kind, check, level, words, id=f"{check}: {words}")


def declaring(name: str, kind: type, default: Any) -> type:
    """Settings with one more."""
    return make_dataclass("Settings", [(name, kind, default)], bases=(EchoConfig,))


UNSAVED = declaring("where", Path, Path())
Address = type("Address", (Word,), {"__repr__": object.__repr__})


async def random_start(self: Any, task: Word) -> Observation:
    self.task, self.left = Word(str(random.random())), 3
    return self.observe(())


def stepping(result: Callable[[Any], Any]) -> Any:
    async def step(self: Any, turn: Turn) -> Any:
        self.left -= 1
        return result(self)

    return step


async def raises_on_long_texts(self: Any, turn: Turn) -> StepResult:
    if any(len(str(action.arguments)) > 500 for action in turn.actions):
        raise KeyError("no such word")
    return await Episode.step(self, turn)


async def silent_of_refusals(self: Any, turn: Turn) -> StepResult:
    return await Episode.step(self, Turn(turn.text, turn.actions))


async def stubborn(self: Any, turn: Turn) -> StepResult:
    try:
        await asyncio.sleep(0.005)
    except BaseException:
        await asyncio.sleep(0)
    return await Episode.step(self, turn)


async def holding_up(self: Any, task: Word) -> Observation:
    if not hasattr(self.shared, "held"):
        self.shared.held = True
        time.sleep(0.55)
    return await Episode.reset(self, task)


def randomly(self: Any) -> StepResult:
    return StepResult(self.observe([str(random.random())]) if self.left else None)


def raises_outage(self: Any) -> StepResult:
    raise OutageError("the words are gone")


def shared_count(self: Any) -> StepResult:
    """Counts the steps of one episode, as it believes, where all of them see it."""
    self.shared.count = 1 if self.left == self.shared.config.turns - 1 else self.shared.count + 1
    return StepResult(self.observe([str(self.shared.count)]) if self.left else None)


async def both(self: Any, turn: Turn) -> StepResult:
    result = await Episode.step(self, turn)
    return StepResult(result.observation, result.reason or StopReason.ANSWERED)


def scored(score: Any) -> Any:
    async def give(self: Any) -> Any:
        return score(self) if callable(score) else score

    return give


def by_steps(self: Any) -> Score:
    return Score(1.0 / (self.shared.config.turns - self.left), (self.answer,))


def showing(**changes: Any) -> Any:
    def observe(self: Any, said: Sequence[str]) -> Any:
        told = Episode.observe(self, said)
        values = {name: getattr(told, name) for name in told.__dataclass_fields__}
        return Observation(**{**values, **changes})

    return observe


LINE = Piece("line", {"text": ""})


def closing(values: dict[str, Any], needs: str | None = None) -> Any:
    return showing(closing=(Piece("left", values, needs),))


HINT = Observation("talking", stream=(Piece("hint"),))
unasked = showing(question=None)


def raises(*arguments: Any) -> Any:
    raise RuntimeError("never mind")


def texts(*shown: Observation, **members: Any) -> dict[str, Any]:
    """Of an environment that reads texts, and is asked."""
    return {"reading": lambda *given: [*shown], "asking": lambda self, question: Word("a"), **members}


BROKEN = [
    broken("settings", "fail", "config_class is <class 'dict'>", config_class=dict),
    broken("settings", "fail", "memory or embedder have capacity too", config_class=declaring("capacity", int, 3)),
    broken("settings", "fail", "not JSON serializable", config_class=UNSAVED),
    broken("settings", "warn", "where have no help", config_class=UNSAVED),
    broken("actions", "fail", "create name two actions", actions=(ActionSpec("create", Body.TEXT), ANSWER_ACTION)),
    broken("actions", "fail", "memory executes it", actions=(ActionSpec("say", Body.TEXT, "memory"), ANSWER_ACTION)),
    broken("actions", "fail", "is not valid", actions=(ActionSpec("say", Body.ARGUMENTS, schema={"type": "word"}),)),
    broken("actions", "fail", "for two actions", actions=(ActionSpec("say", Body.TEXT, tag="read_memory"),)),
    broken("actions", "warn", "say has no description", actions=(ActionSpec("say", Body.ARGUMENTS), ANSWER_ACTION)),
    broken("actions", "fail", "there is no phase", phases=()),
    broken("templates", "fail", "full.yaml", templates=Path("nowhere")),
    broken("templates", "fail", "lacks {shout}", pieces={**Echo.pieces, "word": ["shout"]}),
    broken("templates", "fail", "`inside` names none", inside={"line": "said", "none": "said"}),
    broken("templates", "warn", "the numbers size", numbers=("left", "size")),
    broken("blank", "fail", "never mind", blank=raises),
    broken("blank", "fail", "of the phase 'other'", blank=lambda self, phase: Observation("other")),
    broken("tasks", "fail", "never mind", describe=staticmethod(raises)),
    broken("tasks", "fail", "describe(a) is", describe=staticmethod(lambda task: TaskDescription("x"))),
    broken("reset", "fail", "begins in different ways", episode_reset=random_start),
    broken("reset", "fail", "never mind", prepare=raises),
    broken("observations", "fail", "phase 'shouting'", episode_observe=showing(phase="shouting")),
    broken("observations", "fail", "an observation is None", episode_observe=lambda self, said: None),
    broken("observations", "fail", "piece 'hint' is not declared", episode_observe=showing(closing=(Piece("hint"),))),
    broken("observations", "fail", "nothing for left", episode_observe=showing(closing=(Piece("left"),))),
    broken("observations", "fail", "str '3' for left", episode_observe=closing({"left": "3"})),
    broken("observations", "fail", "stands in the prompt", episode_observe=showing(task=(LINE,))),
    broken("observations", "fail", "closing is [", episode_observe=showing(closing=[Piece("left", {"left": 1})])),
    broken("observations", "fail", "question 4 is asked", episode_observe=showing(question=4)),
    broken("observations", "fail", "needs 'shout'", episode_observe=closing({"left": 1}, "shout")),
    broken("step", "fail", "step() is not async", episode_step=lambda *given: None),
    broken("step", "fail", "KeyError: 'no such word'", episode_step=raises_on_long_texts),
    broken("step", "fail", "step() gave Observation", episode_step=stepping(lambda self: self.observe(()))),
    broken("step", "fail", "for the reason", episode_step=stepping(lambda self: StepResult(None, StopReason.FAILED))),
    broken("step", "fail", "an observation and the reason answered", episode_step=both),
    broken("step", "warn", "an outage: the words are gone", episode_step=stepping(raises_outage)),
    broken("end", "fail", "goes on after 20 steps", episode_step=stepping(lambda self: StepResult(self.observe(())))),
    broken("feedback", "warn", "nothing is said of it", episode_step=silent_of_refusals),
    broken("score", "fail", "score() gave 1.0", episode_score=scored(1.0)),
    broken("score", "fail", "the reward is 1.5", episode_score=scored(Score(1.5))),
    broken("score", "fail", "ZeroDivisionError", episode_score=scored(by_steps)),
    broken("score", "fail", "answers has 2 values", episode_score=scored(Score(0.0, ("a", "b")))),
    broken("score", "fail", "an answer is [3]", episode_score=scored(Score(0.0, (3,)))),  # type: ignore[arg-type]
    broken("score", "fail", "em is None", episode_score=scored(Score(0.0, (), {"em": None}))),  # type: ignore[dict-item]
    broken("score", "warn", "who writes nothing earns 0.5", episode_score=scored(Score(0.5))),
    broken("score", "fail", "diagnose() gave 2 values", diagnose=lambda self, task, episode: [{}, {}]),
    broken("score", "fail", "diagnose: RuntimeError", diagnose=raises),
    broken("repeatable", "warn", "another way the second time", episode_step=stepping(randomly)),
    broken("apart", "fail", "another way beside", episode_step=stepping(shared_count)),
    broken("given up", "fail", "step() went on", episode_step=stubborn),
    broken("event loop", "warn", "reset() held everything up for 0.", episode_reset=holding_up),
    broken("texts", "fail", "asks no questions", reading=lambda *given: []),
    broken("texts", "fail", "piece 'hint' is not declared", **texts(HINT)),
    broken("texts", "fail", "does not ask the question", **texts(episode_observe=unasked)),
    broken("score", "fail", "the reward is None", episode_score=scored(Score(None))),
    broken("trace", "fail", "not JSON serializable", episode_observe=showing(label=Path("x"))),
]


@pytest.mark.parametrize(("kind", "name", "level", "words"), BROKEN)
def test_a_broken_promise_is_found(kind: type[EnvironmentFactory], name: str, level: str, words: str) -> None:
    found = [finding for finding in check(kind) if finding.level != "pass"]
    assert any((finding.check, finding.level) == (name, level) and words in finding.detail for finding in found)
    assert all(finding.remedy and len(finding.detail) < 600 for finding in found)
    # Little is blamed beside what is broken.
    assert len({finding.check for finding in found}) <= 3


def test_tasks_that_cannot_be_told_apart_or_are_not_there(tmp_path: Path) -> None:
    found = check(Echo, tasks=None)
    assert [finding.check for finding in found if finding.level == "warn"] == ["tasks"]
    assert "step" not in [finding.check for finding in found], "only declarations are checked"
    found = check(Echo, tasks=[Word("a"), Word("a")])
    assert ("fail", "several tasks have the id a") in [(finding.level, finding.detail) for finding in found]
    found = check(Echo, tasks=[Word(7)])  # type: ignore[arg-type]
    assert next(finding.detail for finding in found if finding.level == "fail") == "a task has the id 7"
    found = check(Echo, tasks=None, data=tmp_path / "none")
    assert found[-1].check == "tasks"
    assert found[-1].detail.startswith("DataError")
    kind = type("Broken", (Echo,), {"read_tasks": staticmethod(lambda path: [Address("a")])})
    (failed,) = (finding for finding in check(kind, tasks=None, data="x") if finding.level == "fail")
    assert "repr" in failed.remedy


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="there is no 'nowhere'"):
        main(["check", "nowhere"])
    assert main(["list"]) == 0
    assert "longdoc" in capsys.readouterr().out
    read = read_settings(EchoConfig, "echo", ["--turns", "5", "--loud", "true", "--words", "a", "7"])
    assert read == EchoConfig(environment="echo", turns=5, loud=True, words=["a", "7"])
    with pytest.raises(ConfigError, match=r"--volume 3 is no setting of echo: it has turns, loud, words"):
        read_settings(EchoConfig, "echo", ["--volume", "3"])
    with pytest.raises(ConfigError, match="turns is 0"):
        read_settings(EchoConfig, "echo", ["--turns", "0"])
