"""Observations, steps, episodes, and statistics over episodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import sqrt
from typing import Any

from atommem.actions import ANSWER, MEMORY_KINDS, Action, Problem, ProblemReason
from atommem.memory.log import POLICY, MemoryView, Operation, Outcome


@dataclass(frozen=True, slots=True)
class Piece:
    """A block of an observation: a template of the environment's section, with its values.

    Attributes:
        name: The template's.
        values: By placeholder. Texts are data; numbers are trusted; pieces are nested blocks.
        needs: A memory action (``read``) without which the piece is not shown.
    """

    name: str
    values: Mapping[str, str | int | Piece | tuple[Piece, ...]] = field(default_factory=dict)
    needs: str | None = None

    def walk(self) -> Iterator[tuple[str, str | int]]:
        """Yield all texts and numbers with their placeholders."""
        for name, value in self.values.items():
            if isinstance(value, Piece):
                yield from value.walk()
            elif isinstance(value, tuple):
                for piece in value:
                    yield from piece.walk()
            else:
                yield name, value


@dataclass(frozen=True, slots=True)
class Observation:
    """The environment's part of what the policy sees (the memory's part is `MemoryView`).

    Attributes:
        phase: The environment's name for the kind of step (``reading``, ``answering``, ``acting``).
        task: Pieces that stay through the episode; they come first.
        stream: New at this step; before the memory (layout ``prefix``) or after it (``paper``).
        closing: The instruction for this step; it comes last.
        label: The position, for people (``chunk 3/10``).
        question: The index of the first question that is asked; None while none is.
        questions: The number of questions that are asked.
        origin: The name of the chunk or page, kept with the entries written at this step.
        start, end: The chunk's span of characters in the whole text, kept with them too.
    """

    phase: str
    task: tuple[Piece, ...] = ()
    stream: tuple[Piece, ...] = ()
    closing: tuple[Piece, ...] = ()
    label: str = ""
    question: int | None = None
    origin: str | None = None
    questions: int = 1
    start: int | None = None
    end: int | None = None

    @property
    def asked(self) -> range:
        """The indices of the questions that are asked."""
        return (
            range(0)
            if self.question is None
            else range(self.question, self.question + self.questions)
        )

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """All pieces in order."""
        return (*self.task, *self.stream, *self.closing)

    def values(self, name: str) -> list[Any]:
        """Return all values of the placeholder `name`, in order."""
        return [value for piece in self.pieces for key, value in piece.walk() if key == name]


class StopReason(StrEnum):
    """Why an episode ended."""

    ANSWERED = "answered"
    """Every question has an answer, or an environment without questions came to its end."""
    UNANSWERED = "unanswered"
    """The steps ran out before every question had an answer."""
    STEP_LIMIT = "step_limit"
    TOKEN_LIMIT = "token_limit"
    TIME_LIMIT = "time_limit"
    CONTEXT_OVERFLOW = "context_overflow"
    """The prompt did not fit the policy's context window."""
    FAILED = "failed"
    """An outage outside of the policy: counted, not scored."""


@dataclass(slots=True)
class Step:
    """One observation, one completion, and the operations that its actions led to.

    Attributes:
        index: From 0.
        prompt_ids: Empty unless the agent keeps prompts.
        token_ids: As sampled; training uses them as they are.
        logprobs: Their log-probabilities in nats.
        operations: Empty if an outage prevented them.
        store_size: The number of entries after the step.
        prompt_tokens, completion_tokens: Counts, also if a chat server returns text only.
        prompt: The prompt's text, if it does not follow from observation and view (baselines).
    """

    index: int
    observation: Observation
    view: MemoryView
    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    text: str
    finish_reason: str
    actions: tuple[Action, ...]
    problems: tuple[Problem, ...]
    operations: tuple[Operation, ...]
    store_size: int
    prompt_tokens: int = 0
    seconds: float = 0.0
    prompt: str | None = None
    completion_tokens: int = 0

    def __post_init__(self) -> None:
        self.completion_tokens = self.completion_tokens or len(self.token_ids)


@dataclass(slots=True)
class Episode:
    """One run of one policy on one task, from empty memory to a terminal reward.

    Attributes:
        task_id, sample: The task, and the index of this episode among those of the task.
        answers: One for each question; None where the policy gave none.
        reward: From 0 to 1; None if the episode failed, or if the task has no gold answers.
        metrics: Further scores (``em``, ``f1``, ...).
        question_metrics: The scores of each question.
        question_notes: How each question was scored, in words.
        stop_reason: None while the episode is in progress.
        error: The outage that ended a failed episode.
        seconds: Wall-clock time.
    """

    task_id: str
    sample: int
    steps: list[Step] = field(default_factory=list)
    answers: tuple[str | None, ...] = ()
    reward: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    question_metrics: tuple[dict[str, float], ...] = ()
    question_notes: tuple[str, ...] = ()
    stop_reason: StopReason | None = None
    error: str | None = None
    seconds: float = 0.0

    @property
    def in_progress(self) -> bool:
        """Whether the episode has not ended."""
        return self.stop_reason is None

    @property
    def failed(self) -> bool:
        """Whether an outage ended the episode, which then has no score."""
        return self.stop_reason is StopReason.FAILED


WASTED_OUTCOMES = (Outcome.UNKNOWN_HANDLE, Outcome.REJECTED, Outcome.DISABLED)

_PER_EPISODE = (
    "steps",
    "tokens/prompt",
    "tokens/completion",
    "retrievals",
    "store_size",
    "seconds",
)
_ACTION = "actions/"
_PER_STEP = (
    *(f"{_ACTION}{kind}" for kind in (*MEMORY_KINDS, ANSWER)),
    "malformed",
    "truncated",
    "thinking_cut",
    *(f"wasted/{outcome}" for outcome in WASTED_OUTCOMES),
)
_STOPS = tuple(f"stop/{reason}" for reason in StopReason)
_UNSCORED = "unscored"
_METRIC = "metric/"
_METRIC_COUNT = "metric_count/"


def episode_sums(episodes: Iterable[Episode]) -> dict[str, float]:
    """Return additive totals; failed episodes only count as ``episodes`` and ``failed``."""
    counts = ("reward", "reward_squared", "failed", "episodes")
    sums = defaultdict(float, dict.fromkeys((*_PER_EPISODE, *_PER_STEP, *_STOPS, *counts), 0.0))
    for episode in episodes:
        sums["episodes"] += 1
        sums[f"stop/{episode.stop_reason}"] += 1
        if episode.failed:
            sums["failed"] += 1
        else:
            _add_episode(sums, episode)
    return dict(sums)


def _add_episode(sums: defaultdict[str, float], episode: Episode) -> None:
    if episode.reward is None:
        sums[_UNSCORED] += 1
    else:
        sums["reward"] += episode.reward
        sums["reward_squared"] += episode.reward * episode.reward
    sums["steps"] += len(episode.steps)
    sums["seconds"] += episode.seconds
    sums["store_size"] += episode.steps[-1].store_size if episode.steps else 0
    for name, value in episode.metrics.items():
        add_value(sums, name, value)
    for step in episode.steps:
        sums["tokens/prompt"] += step.prompt_tokens
        sums["tokens/completion"] += step.completion_tokens
        sums["malformed"] += len(step.problems)
        sums["truncated"] += step.finish_reason == "length"
        sums["thinking_cut"] += any(
            problem.reason is ProblemReason.UNCLOSED_THINKING for problem in step.problems
        )
        for action in step.actions:
            sums[_ACTION + action.kind] += 1
        # Operations of rules are not the policy's.
        operations = [operation for operation in step.operations if operation.actor == POLICY]
        for operation in operations:
            if operation.outcome in WASTED_OUTCOMES:
                sums[f"wasted/{operation.outcome}"] += 1
        # Several reads of one completion set one query.
        sums["retrievals"] += any(
            operation.kind == "read" and operation.outcome is Outcome.APPLIED
            for operation in operations
        )


def add_value(sums: dict[str, float], name: str, value: float) -> None:
    """Add a value to the mean that `means` returns as `name`."""
    for key, amount in ((_METRIC + name, value), (_METRIC_COUNT + name, 1.0)):
        sums[key] = sums.get(key, 0.0) + amount


def means(sums: Mapping[str, float]) -> dict[str, float]:
    """Return means and rates; a mean over nothing is left out.

    Keys (means over episodes that did not fail, unless stated otherwise):
        episodes, failed: counts.
        reward, reward_std (of the population), and each metric by its name: of scored episodes.
        actions/KIND: parsed actions a step.
        malformed: parser problems a step.
        truncated, thinking_cut: completions cut at their limit, or inside a thinking block, a step.
        wasted/unknown_handle, /rejected, /disabled: actions without effect a step.
        steps, retrievals (completions with an applied read), tokens/prompt, tokens/completion,
            seconds: an episode.
        store_size: entries at the end.
        stop/REASON: the share of all episodes, including failed ones.
    """
    result = {"episodes": sums["episodes"], "failed": sums["failed"]}
    if sums["episodes"]:
        result.update({key: sums[key] / sums["episodes"] for key in _STOPS})
    ended = sums["episodes"] - sums["failed"]
    if ended:
        result.update({key: sums[key] / ended for key in _PER_EPISODE})
    if rewarded := ended - sums.get(_UNSCORED, 0.0):
        result["reward"] = sums["reward"] / rewarded
        result["reward_std"] = sqrt(
            max(sums["reward_squared"] / rewarded - result["reward"] ** 2, 0.0)
        )
    if sums["steps"]:
        per_step = [key for key in sums if key in _PER_STEP or key.startswith(_ACTION)]
        result.update({key: sums[key] / sums["steps"] for key in per_step})
    for key, count in sums.items():
        if key.startswith(_METRIC_COUNT) and count:
            name = key.removeprefix(_METRIC_COUNT)
            result[name] = sums[_METRIC + name] / count
    return result


def action_names(*statistics: Mapping[str, object]) -> list[str]:
    """Return the counted actions: the memory's, then those of environments."""
    found = {
        key.removeprefix(_ACTION)
        for entry in statistics
        for key in entry
        if key.startswith(_ACTION)
    }
    return [*MEMORY_KINDS, *sorted(found - set(MEMORY_KINDS))]


def add_sums(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Add several `episode_sums` (one a rank) by key."""
    total: defaultdict[str, float] = defaultdict(float)
    for part in parts:
        for key, value in part.items():
            total[key] += value
    return dict(total)
