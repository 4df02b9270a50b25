"""What an episode consists of: observations, steps, the episode itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from atommem.actions import Action, Problem
from atommem.memory.log import MemoryView, Operation
from atommem.observation import Observation, StopReason


@dataclass(slots=True)
class Step:
    """One observation -> one completion -> its actions applied.

    `token_ids` are what the policy sampled and `logprobs` its log-probabilities of them (nats, of
    the unscaled distribution); they are trained on as they are, never re-encoded from `text`.
    `prompt_ids` are empty where nothing is trained on them; `prompt_tokens` is their number in any case, and
    `completion_tokens` that of the tokens sampled, also where a chat server returns text only.
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
        task_id, sample: Which task, and the how-manieth episode of it.
        answers: One per question, None where none was given.
        reward: In [0, 1]; None when `stop_reason` is FAILED, and where its task says of no answer whether it is right.
        metrics: Further scores (``em``, ``f1``, ...), empty when failed.
        question_metrics: The scores of each question, empty when failed.
        question_notes: How each was scored, in words; empty where nothing is to be said.
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
    question_notes: tuple[str, ...] = ()
    stop_reason: StopReason = StopReason.FAILED
    error: str | None = None
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether an outage ended the episode; then it has no score."""
        return self.stop_reason is StopReason.FAILED
