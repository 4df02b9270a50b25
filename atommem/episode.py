"""What an episode consists of: observations, steps, the episode itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from atommem.actions import Action, Problem
from atommem.memory.entries import MemoryView
from atommem.memory.operations import Operation

Phase = Literal["reading", "answering"]


class StopReason(StrEnum):
    """Why an episode ended. Every ending has one of these."""

    ANSWERED = "answered"
    """Every question got an answer."""
    UNANSWERED = "unanswered"
    """The steps ran out and at least one question has no answer."""
    STEP_LIMIT = "step_limit"
    TOKEN_LIMIT = "token_limit"
    TIME_LIMIT = "time_limit"
    CONTEXT_OVERFLOW = "context_overflow"
    """The prompt did not fit the policy's context window."""
    FAILED = "failed"
    """An outage outside the policy. Not scored; counted and reported."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The environment's part of what the policy sees (the memory's part is `MemoryView`).

    Attributes:
        phase: ``reading`` while the stream lasts, ``answering`` afterwards.
        questions: While reading, all questions of the task; while answering, the current one.
        chunk: The piece of the document at this step; None while answering.
        chunk_index, chunk_count: Position in the stream, from 0.
        question_index, question_count: The current question (answering), from 0.
        reads_left: How many more steps without an answer the current question allows.
        tool_result: What the last tool call returned (tool environments).
    """

    phase: Phase
    questions: tuple[str, ...]
    chunk: str | None = None
    chunk_index: int = 0
    chunk_count: int = 0
    question_index: int = 0
    question_count: int = 1
    reads_left: int = 0
    tool_result: str | None = None


@dataclass(slots=True)
class Step:
    """One observation -> one completion -> its actions applied.

    `token_ids` are what the policy sampled and `logprobs` its log-probabilities of them (nats, of
    the unscaled distribution); they are trained on as they are, never re-encoded from `text`.
    `prompt` is the prompt's text where it cannot be made again from `observation` and `view`: the
    baselines of an evaluation word their own prompts.
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
    seconds: float = 0.0
    prompt: str | None = None


@dataclass(slots=True)
class Episode:
    """One run of one policy on one task, from empty memory to a terminal reward.

    Attributes:
        task_id, sample: Which task, and the how-manieth episode of it.
        answers: One per question, None where none was given.
        reward: In [0, 1]; None exactly when `stop_reason` is FAILED.
        metrics: Further scores (``em``, ``f1``, ...), empty when failed.
        question_metrics: The scores of each question, empty when failed.
        error: What failed, when `stop_reason` is FAILED.
        seconds: Wall-clock of the whole episode.
    """

    task_id: str
    sample: int
    steps: list[Step] = field(default_factory=list)
    answers: tuple[str | None, ...] = ()
    reward: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    question_metrics: tuple[dict[str, float], ...] = ()
    stop_reason: StopReason = StopReason.FAILED
    error: str | None = None
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether an outage ended the episode; then it has no reward."""
        return self.stop_reason is StopReason.FAILED
