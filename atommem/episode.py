"""Episodes and their steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from atommem.actions import Action, Problem
from atommem.memory.log import MemoryView, Operation
from atommem.observation import Observation, StopReason


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
