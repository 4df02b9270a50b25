"""Observations, steps, episodes, and statistics over episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import sqrt
from os.path import commonprefix
from typing import Any

from atommem.actions import ANSWER, MEMORY_KINDS, READ, Action, Call, Problem, ProblemReason
from atommem.memory.log import POLICY, MemoryView, Operation, Outcome


@dataclass(frozen=True, slots=True)
class Piece:
    """A block of an observation: a template of the environment's section, with its values.

    Of the values, texts are data, numbers are trusted, and pieces are nested blocks.
    """

    name: str  # the template's
    values: Mapping[str, str | int | Piece | tuple[Piece, ...]] = field(default_factory=dict)
    needs: str | None = None  # a memory action (`read`) without which it is not shown

    def walk(self) -> Iterator[tuple[str, str | int]]:
        """Yield all texts and numbers with their placeholders."""
        for name, value in self.values.items():
            if isinstance(value, (str, int)):
                yield name, value
            else:
                for piece in value if isinstance(value, tuple) else (value,):
                    yield from piece.walk()


@dataclass(frozen=True, slots=True)
class Observation:
    """The environment's part of what the policy sees (the memory's part is `MemoryView`).

    `origin`, `start` and `end` are kept with the entries that are written at this step.
    """

    phase: str  # the environment's name for the kind of step (reading, answering, acting)
    task: tuple[Piece, ...] = ()  # stays through the episode; comes first
    stream: tuple[Piece, ...] = ()  # new; before the memory (layout prefix) or after it (paper)
    closing: tuple[Piece, ...] = ()  # the instruction for this step; comes last
    label: str = ""  # the position, for people (chunk 3/10)
    question: int | None = None  # the index of the first that is asked
    origin: str | None = None  # the name of the chunk or page
    questions: int = 1  # that are asked
    start: int | None = None  # the chunk's span of characters in the whole text
    end: int | None = None

    @property
    def asked(self) -> range:
        """The indices of the questions that are asked."""
        first = self.question
        return range(0) if first is None else range(first, first + self.questions)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return (*self.task, *self.stream, *self.closing)

    def values(self, name: str) -> list[Any]:
        """Return all values of the placeholder `name`, in order."""
        return [value for piece in self.pieces for key, value in piece.walk() if key == name]


_REFUSED_CALLS = (ProblemReason.NOT_JSON, ProblemReason.UNKNOWN_TOOL, ProblemReason.BAD_ARGUMENTS)


class StopReason(StrEnum):
    """Why an episode ended."""

    ANSWERED = "answered"  # every question, or an environment without questions came to its end
    UNANSWERED = "unanswered"  # the steps ran out before every question had an answer
    STEP_LIMIT = "step_limit"
    TOKEN_LIMIT = "token_limit"
    TIME_LIMIT = "time_limit"
    CONTEXT_OVERFLOW = "context_overflow"  # the prompt did not fit the policy's context window
    FAILED = "failed"  # an outage outside of the policy: counted, not scored


@dataclass(slots=True)
class Step:
    """One observation, one completion, and the operations that its actions led to.

    `prompt` is the prompt's text, where a trace keeps it for people; of baselines it does not
    follow from observation and view.
    """

    index: int  # from 0
    observation: Observation
    view: MemoryView = field(default_factory=MemoryView)
    prompt_ids: list[int] = field(default_factory=list)  # empty unless the agent keeps prompts
    token_ids: list[int] = field(default_factory=list)  # as sampled; training uses them as they are
    logprobs: list[float] = field(default_factory=list)  # nats
    text: str = ""
    finish_reason: str = "stop"
    actions: tuple[Action, ...] = ()
    problems: tuple[Problem, ...] = ()
    operations: tuple[Operation, ...] = ()  # empty if an outage prevented them
    store_size: int = 0  # entries after the step
    prompt_tokens: int = 0
    seconds: float = 0.0
    prompt: str | None = None
    completion_tokens: int = 0  # also if a chat server returns text only
    searches: int = 0  # that found what its prompt showed: one while a query stands

    def __post_init__(self) -> None:
        self.completion_tokens = self.completion_tokens or len(self.token_ids)

    @property
    def calls(self) -> list[Call]:
        """The tool calls in order, including refused ones, which deserve an answer as well."""
        made = [action for action in self.actions if action.arguments is not None]
        refused = [problem for problem in self.problems if problem.reason in _REFUSED_CALLS]
        return sorted([*made, *refused], key=lambda call: call.start)


def written_and_cut(step: Step) -> tuple[int, int]:
    """Return the characters of a step's texts for the memory, and how many of them limits cut."""
    kept = {*MEMORY_KINDS} - {READ}
    texts = [action.text for action in step.actions if action.kind in kept]
    done = [item for item in step.operations if item.actor == POLICY and item.kind in kept]
    cut = [
        len(text) - len(commonprefix((text, operation.after or "")))  # noqa: RUF071, not paths
        for text, operation in zip(texts, done, strict=False)  # an outage leaves no operations
        if operation.reason == "cut"
    ]
    return sum(map(len, texts)), sum(cut)


@dataclass(slots=True)
class Episode:
    """One run of one policy on one task, from empty memory to a terminal reward.

    The scores are those of `environment.Score`; a failed episode has none.
    """

    task_id: str
    sample: int  # the index of this episode among those of the task
    steps: list[Step] = field(default_factory=list)
    answers: tuple[str | None, ...] = ()
    reward: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    question_metrics: tuple[dict[str, float], ...] = ()
    question_notes: tuple[str, ...] = ()
    stop_reason: StopReason | None = None  # while it is in progress
    error: str | None = None  # the outage that ended a failed episode
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether an outage ended the episode, which then has no score."""
        return self.stop_reason is StopReason.FAILED


_ACTION, _METRIC, _METRIC_COUNT = "actions/", "metric/", "metric_count/"
_WASTED = (Outcome.UNKNOWN_HANDLE, Outcome.REJECTED, Outcome.DISABLED)
_COUNTS = ("episodes", "failed")
_STOPS = tuple(f"stop/{reason}" for reason in StopReason)
_PER_EPISODE = ["steps", "tokens/prompt", "tokens/completion", "retrievals"]
_PER_EPISODE += ["store_size", "seconds"]
_PER_STEP = [f"{_ACTION}{kind}" for kind in (*MEMORY_KINDS, ANSWER)]
_PER_STEP += ["malformed", "truncated", "thinking_cut", *(f"wasted/{kind}" for kind in _WASTED)]


def episode_sums(episodes: Iterable[Episode]) -> dict[str, float]:
    """Return additive totals; failed episodes only count as ``episodes`` and ``failed``."""
    nothing = dict.fromkeys((*_COUNTS, *_STOPS, *_PER_EPISODE, *_PER_STEP), 0.0)
    return add_sums([nothing, *map(_sums_of, episodes)])


def _sums_of(episode: Episode) -> dict[str, float]:
    steps, failed = episode.steps, episode.failed
    sums = {"episodes": 1.0, "failed": float(failed), f"stop/{episode.stop_reason}": 1.0}
    if failed:
        return sums
    problems = [problem for step in steps for problem in step.problems]
    # Operations of rules are not the policy's.
    operations = [[item for item in step.operations if item.actor == POLICY] for step in steps]
    outcomes = Counter(item.outcome for items in operations for item in items)
    sums |= {
        "steps": len(steps),
        "seconds": episode.seconds,
        "store_size": steps[-1].store_size if steps else 0,
        "tokens/prompt": sum(step.prompt_tokens for step in steps),
        "tokens/completion": sum(step.completion_tokens for step in steps),
        "malformed": len(problems),
        "truncated": sum(step.finish_reason == "length" for step in steps),
        "thinking_cut": sum(item.reason is ProblemReason.UNCLOSED_THINKING for item in problems),
        "retrievals": sum(step.searches for step in steps),
        **{f"wasted/{outcome}": outcomes[outcome] for outcome in _WASTED},
        **Counter(_ACTION + action.kind for step in steps for action in step.actions),
    }
    scores = dict(episode.metrics)
    if episode.reward is not None:
        scores["reward"] = episode.reward
        sums["reward_squared"] = episode.reward**2
    for name, value in scores.items():
        add_value(sums, name, value)
    return sums


def add_value(sums: dict[str, float], name: str, value: float) -> None:
    """Add a value to the mean that `means` returns as `name`."""
    for key, amount in ((_METRIC + name, value), (_METRIC_COUNT + name, 1.0)):
        sums[key] = sums.get(key, 0.0) + amount


def add_sums(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Add several `episode_sums` (one a rank) by key."""
    total = Counter[str]()
    for part in parts:
        total.update(part)
    return dict(total)


def means(sums: Mapping[str, float]) -> dict[str, float]:
    """Return means and rates; a mean over nothing is left out.

    Keys (means over episodes that did not fail, unless stated otherwise):
        episodes, failed: counts.
        reward, reward_std (of the population), and each metric by its name: of scored episodes.
        actions/KIND: parsed actions a step.
        malformed: parser problems a step.
        truncated, thinking_cut: completions cut at their limit, or inside a thinking block, a step.
        wasted/unknown_handle, /rejected, /disabled: actions without effect a step.
        steps, retrievals (searches), tokens/prompt, tokens/completion, seconds: an episode.
        tokens/call: completion tokens a step.
        store_size: entries at the end.
        stop/REASON: the share of all episodes, including failed ones.
    """
    result = {key: sums[key] for key in _COUNTS}
    per_step = [key for key in sums if key in _PER_STEP or key.startswith(_ACTION)]
    for keys, count in (
        (_STOPS, sums["episodes"]),
        (_PER_EPISODE, sums["episodes"] - sums["failed"]),
        (per_step, sums["steps"]),
    ):
        if count:
            result |= {key: sums[key] / count for key in keys}
    if sums["steps"]:
        result["tokens/call"] = sums["tokens/completion"] / sums["steps"]
    for key, count in sums.items():
        name = key.removeprefix(_METRIC_COUNT)
        if name != key:
            result[name] = sums[_METRIC + name] / count
    if "reward" in result:
        square = sums["reward_squared"] / sums[f"{_METRIC_COUNT}reward"]
        result["reward_std"] = sqrt(max(square - result["reward"] ** 2, 0.0))
    return result


def action_names(*statistics: Mapping[str, object]) -> list[str]:
    """Return the counted actions: the memory's, then those of environments."""
    keys = {key for entry in statistics for key in entry if key.startswith(_ACTION)}
    found = {key.removeprefix(_ACTION) for key in keys}
    return [*MEMORY_KINDS, *sorted(found - set(MEMORY_KINDS))]
