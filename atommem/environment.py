"""The environment contract: what feeds the policy and, in the end, scores it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from atommem.actions import Action
from atommem.episode import Observation, StopReason


@dataclass(frozen=True, slots=True)
class StepResult:
    """What follows a step: the next observation, or the end with its reason."""

    observation: Observation | None
    done: bool = False
    reason: StopReason | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """The terminal reward, in [0, 1], with the answers and the metrics that it came from.

    `question_metrics` holds the scores of each question by itself; `metrics` their means. `question_notes` says in
    words how each was scored (a judge's verdict). Records and reports take all of it as it is.
    """

    reward: float
    answers: tuple[str | None, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    question_metrics: tuple[dict[str, float], ...] = ()
    question_notes: tuple[str, ...] = ()


class Environment(Protocol):
    """One episode's world. A fresh one is made for every episode."""

    def reset(self, task: Any) -> Observation:
        """Start on `task`."""
        ...

    async def step(self, actions: Sequence[Action]) -> StepResult:
        """Advance by one completion's actions (memory actions have already been applied)."""
        ...

    async def score(self) -> Score:
        """Score what was answered so far. Called once, at the end.

        Raises:
            OutageError: A judge is out of reach.
        """
        ...
