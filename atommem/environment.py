"""The environment contract: what feeds the policy and, in the end, scores it; and how one is found by its name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from atommem import plugins
from atommem.actions import Action, ActionSpec, Call, Problem, calls
from atommem.description import TaskDescription, TaskShape
from atommem.dialects import Section, load_section
from atommem.errors import ConfigError
from atommem.memory.log import Operation
from atommem.observation import Observation, StopReason
from atommem.tokens import Tokenizer

GROUP = "atommem.environments"
"""The group of entry points that environments are found in."""
DEFAULT_ENVIRONMENT = "longdoc"


@dataclass(frozen=True, slots=True)
class Turn:
    """One completion as the environment sees it, after memory's actions have been applied.

    Attributes:
        text: The completion.
        actions: All of them in order, memory's too.
        problems: What could not be read.
        operations: What became of memory's actions.
        deadline: When the episode's time is up, by the event loop's clock; None without a limit. What takes longer is
            given up.
    """

    text: str
    actions: Sequence[Action] = ()
    problems: Sequence[Problem] = ()
    operations: Sequence[Operation] = ()
    deadline: float | None = None

    @property
    def calls(self) -> list[Call]:
        """The calls of tools in the order in which they were written, refused ones too: each deserves an answer."""
        return calls(self.actions, self.problems)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What follows a step: the next observation, or the end with its reason."""

    observation: Observation | None
    reason: StopReason | None = None

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.observation is None


@dataclass(frozen=True, slots=True)
class Score:
    """The terminal reward, in [0, 1], with the answers and the metrics that it came from; None where nothing is known
    that it could be scored by (a task without gold answers).

    `question_metrics` holds the scores of each question by itself; `metrics` their means. `question_notes` says in
    words how each was scored (a judge's verdict). Records and reports take all of it as it is.
    """

    reward: float | None
    answers: tuple[str | None, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    question_metrics: tuple[dict[str, float], ...] = ()
    question_notes: tuple[str, ...] = ()


class Environment(Protocol):
    """One episode's world. A fresh one is made for every episode.

    What it raises ends the run, but for an `OutageError`: that ends the episode, which is then counted as failed.
    """

    async def reset(self, task: Any) -> Observation:
        """Start on `task`."""
        ...

    async def step(self, turn: Turn) -> StepResult:
        """Advance by one completion, whose memory actions have been applied."""
        ...

    async def score(self) -> Score:
        """Score what was done so far. Called once, at the end, however it came.

        Raises:
            OutageError: A judge is out of reach.
        """
        ...


@dataclass
class EnvironmentConfig:
    """Settings of an environment; each has its own subclass. Part of every checkpoint.

    Attributes:
        operational: Names of those that say where and at what cost and nothing of results: a run may go on with others.
    """

    operational: ClassVar[frozenset[str]] = frozenset()

    environment: str = field(
        default=DEFAULT_ENVIRONMENT,
        metadata={
            "help": "What feeds the policy and scores it: a name (`atommem env list`), or package.module:Class."
        },
    )


class EnvironmentFactory(ABC):
    """A kind of environment under one configuration: makes one for every episode, and holds what they share.

    Attributes:
        config_class: Its settings, a dataclass derived from `EnvironmentConfig`.
        templates: Folder with its template sections, ``full.yaml`` and its like (`atommem.dialects.Section`).
        pieces: Every piece that its observations may hold, with the placeholders that its template must have.
        phases: The phases of its observations.
    """

    config_class: ClassVar[type[EnvironmentConfig]]
    templates: ClassVar[Path]
    pieces: ClassVar[Mapping[str, Sequence[str]]]
    phases: ClassVar[Sequence[str]]

    def __init__(self, config: Any, tokenizer: Tokenizer) -> None:
        self.config = config
        self.tokenizer = tokenizer

    @property
    @abstractmethod
    def actions(self) -> Sequence[ActionSpec]:
        """The actions that it takes."""

    @abstractmethod
    def __call__(self) -> Environment:
        """A fresh environment for one episode."""

    @staticmethod
    @abstractmethod
    def read_tasks(path: str | Path) -> Sequence[Any]:
        """The tasks of a file, each with an ``id`` of its own.

        Raises:
            DataError: The file is missing or damaged; the message names the row and the field.
        """

    @staticmethod
    @abstractmethod
    def describe(task: Any) -> TaskDescription:
        """What the reader of a trace or report should know of a task."""

    @classmethod
    def shown(cls, config: Any) -> Collection[str]:
        """The pieces that observations may hold under these settings: all, unless it says otherwise."""
        return cls.pieces

    @classmethod
    def section(cls, templates: str, config: Any = None) -> Section:
        """Its part of the template set `templates`, under the name in `config` (unset: its class's defaults).

        Raises:
            DialectError: There is none, or it lacks a piece or a placeholder.
        """
        config = config or cls.config_class()
        return load_section(
            templates, config.environment, cls.templates, cls.pieces, cls.shown(config)
        )

    async def prepare(self, task: Any) -> None:
        """Whatever takes a while before an episode of `task` can start."""
        return

    def diagnose(self, task: Any, episode: Any) -> Sequence[dict[str, float]]:
        """Further metrics of each question that say how the episode went, beside its score; none by default."""
        return ()

    @classmethod
    def build(cls, argv: Sequence[str]) -> int:
        """``atommem data build --environment NAME``: write a task file; returns the exit status.

        Raises:
            ConfigError: This environment cannot build any.
        """
        raise ConfigError(
            f"{cls.__name__} builds no tasks: write its task file yourself, and give it as --data."
        )

    def reading(self, text: str | Sequence[str], questions: Sequence[str]) -> Sequence[Observation]:
        """The observations in which `atommem.Memory` reads a text: the same as in an episode.

        Args:
            text: To be cut as a task's; or pieces, which are cut only where they are too long for a step.
            questions: What is known to be asked later; none where nothing is.

        Raises:
            ConfigError: This environment reads no texts.
        """
        raise ConfigError(
            f"{type(self).__name__} reads no texts: Memory and `atommem ask` need an environment that does."
        )

    def asking(self, question: str) -> Any:
        """A task without gold answers that asks this from memory, at its first step.

        Raises:
            ConfigError: This environment asks no questions.
        """
        raise ConfigError(
            f"{type(self).__name__} asks no questions: Memory and `atommem ask` need one that does."
        )

    def blank(self, phase: str) -> Observation:
        """An observation of `phase` with nothing in it: for the length of what is always there."""
        return Observation(phase)

    def shape(self, path: str | None, supposed: TaskShape) -> TaskShape:
        """How long tasks are, for ``atommem train --dry_run``: from their file (None, or not there: `supposed`).

        Raises:
            ConfigError: This environment gives no estimate.
            DataError: The file is no task file.
        """
        raise ConfigError(
            f"{type(self).__name__} gives no estimate of its tasks: a dry run of it is not possible."
        )

    def identity(self) -> dict[str, Any]:
        """Settings that only say where something lies, as what lies there: for the manifest of an evaluation."""
        return {}

    def usage(self) -> dict[str, Any]:
        """What services of its own (a judge) were asked for so far: ``services`` of an evaluation's summary."""
        return {}

    async def close(self) -> None:
        """Free what it holds."""
        return


def find_environment(name: str) -> type[EnvironmentFactory]:
    """The environment called `name`: an entry point of the group ``atommem.environments``, or a dotted path.

    Raises:
        ConfigError: There is none, or it is no environment.
    """
    found = plugins.find(GROUP, name)
    if not (isinstance(found, type) and issubclass(found, EnvironmentFactory)):
        raise ConfigError(
            f"environment {name!r} is {found!r}: it must be a subclass of EnvironmentFactory."
        )
    return found


def environment_names() -> list[str]:
    """The environments that can be named."""
    return plugins.names(GROUP)


def environment_config(name: str, **settings: Any) -> EnvironmentConfig:
    """Settings of the environment called `name`.

    Raises:
        ConfigError: There is no such environment, or a setting is unknown or out of range.
    """
    kind = find_environment(name)
    unknown = [
        setting for setting in settings if setting not in kind.config_class.__dataclass_fields__
    ]
    if unknown:
        raise ConfigError(
            f"environment {name!r} has no setting {', '.join(unknown)}; it has "
            f"{', '.join(kind.config_class.__dataclass_fields__)}."
        )
    return kind.config_class(**{**settings, "environment": name})


def make_environments(config: EnvironmentConfig, tokenizer: Tokenizer) -> EnvironmentFactory:
    """The environment that `config` belongs to.

    Raises:
        ConfigError: There is none of this name, or the settings are another one's.
    """
    kind = find_environment(config.environment)
    if not isinstance(config, kind.config_class):
        raise ConfigError(
            f"environment is {config.environment!r}, but its settings are a {type(config).__name__}: "
            f"give a {kind.config_class.__name__}."
        )
    return kind(config, tokenizer)
