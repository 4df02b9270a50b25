"""The environment contract: it feeds the policy and scores it. Environments are found by name."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from atommem import plugins
from atommem.actions import ActionSpec
from atommem.config import setting
from atommem.dialects import Section, load_section
from atommem.episode import Observation, Step, StopReason
from atommem.errors import ConfigError
from atommem.tokens import Tokenizer

GROUP = "atommem.environments"  # the entry points of environments
DEFAULT_ENVIRONMENT = "longdoc"


@dataclass(frozen=True, slots=True)
class QuestionDescription:
    """A question with its gold answers.

    `category` is the benchmark's, if it reports categories apart (LoCoMo). `attributes` are further
    values by which scores can be broken down (``type``, ``hops``, ...).
    """

    text: str
    golds: tuple[str, ...] = ()
    id: str = ""
    category: str = ""
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskDescription:
    """A task as records, reports and traces show it; `id` is unique in its file.

    `source` is its origin (``hotpotqa``, ...), and `group` the cluster of its scores, such as a
    conversation that tasks share. The questions are in the order of the score's answers.
    """

    id: str
    source: str = ""
    questions: tuple[QuestionDescription, ...] = ()
    group: str = ""


@dataclass(frozen=True, slots=True)
class TaskShape:
    """The mean size of the tasks in a file."""

    source: str  # the origin of the numbers, in words
    tasks: int
    documents: float  # of a task, if nothing else is known of its stream
    stream_steps: float  # that show something new
    stream_tokens: float  # of each of these
    questions: float  # of a task; those of one step count as one
    question_tokens: float
    reads: int  # further steps that a question may take before its answer
    same_stream: bool = True  # a step shows the same to all episodes of a task


@dataclass(frozen=True, slots=True)
class StepResult:
    """The next observation, or None at the end of the episode, with its reason."""

    observation: Observation | None
    reason: StopReason | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """The terminal reward with everything that records and reports show of it."""

    reward: float | None  # from 0 to 1; None if the task has no gold answers
    answers: tuple[str | None, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)  # means over the questions
    question_metrics: tuple[dict[str, float], ...] = ()
    question_notes: tuple[str, ...] = ()  # how each was scored, in words (a judge's verdict)


class Environment(Protocol):
    """The world of one episode: its `OutageError` fails it, other exceptions stop the run."""

    async def reset(self, task: Any) -> Observation:
        """Start a task."""

    async def step(self, step: Step) -> StepResult:
        """Advance by one step, whose memory actions have been applied."""

    async def score(self) -> Score:
        """Score the episode; called once, at its end."""


@dataclass
class EnvironmentConfig:
    """Settings of an environment, saved with checkpoints; each environment has a subclass.

    A run may be resumed although an `operational` setting (an address, a limit of cost) changed.
    """

    operational: ClassVar[frozenset[str]] = frozenset()

    environment: str = setting(
        DEFAULT_ENVIRONMENT, "Environment: a name (`atommem env list`), or package.module:Class."
    )


class EnvironmentFactory(ABC):
    """A kind of environment with its settings; it makes an `Environment` for every episode.

    A subclass defines the attributes and the abstract methods, and overrides others that apply.
    """

    config_class: ClassVar[type[EnvironmentConfig]]
    templates: ClassVar[Path]  # the folder of its template sections, such as `full.yaml`
    pieces: ClassVar[Mapping[str, Sequence[str]]]  # the placeholders of each that it may show
    phases: ClassVar[Sequence[str]]  # of its observations

    def __init__(self, config: Any, tokenizer: Tokenizer) -> None:
        self.config = config
        self.tokenizer = tokenizer

    @property
    @abstractmethod
    def actions(self) -> Sequence[ActionSpec]:
        """The actions that it accepts."""

    @abstractmethod
    def __call__(self) -> Environment:
        """Return a new environment for one episode."""

    @staticmethod
    @abstractmethod
    def read_tasks(path: str | Path) -> Sequence[Any]:
        """Return the tasks of a file, each with a unique ``id``; raise DataError if damaged."""

    @staticmethod
    @abstractmethod
    def describe(task: Any) -> TaskDescription:
        """Return a task as traces and reports show it."""

    # Prompts

    @classmethod
    def shown(cls, config: Any) -> Collection[str]:
        """Return the pieces that observations may contain under these settings; default: all."""
        return cls.pieces

    @classmethod
    def section(cls, templates: str, config: Any) -> Section:
        """Return its section of a template set."""
        shown = cls.shown(config)
        return load_section(templates, config.environment, cls.templates, cls.pieces, shown)

    def blank(self, phase: str) -> Observation:
        """Return an empty observation of a phase, which measures the fixed part of its prompt."""
        return Observation(phase)

    # Running episodes

    async def prepare(self, task: Any) -> None:  # noqa: B027  # optional
        """Do slow work before an episode of `task` starts."""

    def diagnose(self, task: Any, episode: Any) -> Sequence[dict[str, float]]:
        """Return further metrics of each question, which explain the score."""
        return ()

    async def close(self) -> None:  # noqa: B027  # optional
        """Free resources."""

    # `atommem.Memory`, `atommem ask` and `atommem serve`

    def reading(self, text: str | Sequence[str], questions: Sequence[str]) -> Sequence[Observation]:
        """Return the observations in which a text is read before `questions`, as in an episode.

        A text is cut as a task's is; parts are cut only if they are too long.
        """
        raise ConfigError(f"{type(self).__name__} has no `reading`: it does not read texts.")

    def asking(self, question: str) -> Any:
        """Return a task without gold answers that asks this question at its first step."""
        raise ConfigError(f"{type(self).__name__} has no `asking`: it does not ask questions.")

    # `atommem data build` and `atommem train --dry_run`

    @classmethod
    def build(cls, argv: Sequence[str]) -> int:
        """Write a task file with the arguments of ``data build``; return the exit status."""
        raise ConfigError(f"{cls.__name__} has no `build`: write its task file yourself.")

    def shape(self, path: str | None, supposed: TaskShape) -> TaskShape:
        """Return the size of the tasks in a file, or `supposed` without one."""
        raise ConfigError(f"{type(self).__name__} has no `shape`: a dry run is not possible.")

    # Manifests and summaries of evaluations

    def identity(self) -> dict[str, Any]:
        """Return what settings that are paths or addresses refer to (digests, versions)."""
        return {}

    def usage(self) -> dict[str, Any]:
        """Return the requests made so far to the environment's own services (a judge)."""
        return {}


def find_environment(name: str) -> type[EnvironmentFactory]:
    """Return the class that an entry point or ``package.module:Class`` names."""
    found = plugins.find(GROUP, name)
    if not (isinstance(found, type) and issubclass(found, EnvironmentFactory)):
        raise ConfigError(f"environment={name}: not an environment. Subclass EnvironmentFactory.")
    return found


def environment_config(name: str, **settings: Any) -> EnvironmentConfig:
    return find_environment(name).config_class(**{**settings, "environment": name})


def make_factory(config: EnvironmentConfig, tokenizer: Tokenizer) -> EnvironmentFactory:
    return find_environment(config.environment)(config, tokenizer)
