"""What an environment shows at a step, and why an episode ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an observation: the name of a template of the environment's section, and what fills it.

    Attributes:
        name: Which template.
        values: By placeholder. Text is data, wherever it comes from, and is shown as such; numbers are ours. A piece,
            or several (a list), stand where their placeholder stands.
        needs: Shown only where the policy can write this memory action (``read``).
    """

    name: str
    values: Mapping[str, str | int | Piece | tuple[Piece, ...]] = field(default_factory=dict)
    needs: str | None = None

    def walk(self) -> Iterator[tuple[str, str | int]]:
        """All texts and numbers in it with their placeholders."""
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
        phase: The environment's name for what is going on (``reading``, ``answering``, ``acting``).
        task: Pieces that stay through the episode; they stand first.
        stream: What is new at this step. Layout ``prefix`` has it before the memory, ``paper`` after it.
        closing: What to do now; stands last.
        label: Where this is, for people (``chunk 3/10``).
        question: Index of the question that is asked at this step; None while none is.
        questions: How many are asked, from that one on.
        origin: Where what is shown comes from (a chunk, an address): kept with the entries written at this step.
        start, end: Its span of characters in the whole text that is read in parts, kept with them as well.
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
        """Indices of the questions that are asked at this step."""
        return (
            range(0)
            if self.question is None
            else range(self.question, self.question + self.questions)
        )

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """All of them."""
        return (*self.task, *self.stream, *self.closing)

    def values(self, name: str) -> list[Any]:
        """Everything that stands for the placeholder `name`, in order."""
        return [value for piece in self.pieces for key, value in piece.walk() if key == name]


class StopReason(StrEnum):
    """Why an episode ended. Every ending has one of these."""

    ANSWERED = "answered"
    """Every question got an answer (an environment without questions: it came to its end)."""
    UNANSWERED = "unanswered"
    """The steps ran out and at least one question has no answer."""
    STEP_LIMIT = "step_limit"
    TOKEN_LIMIT = "token_limit"
    TIME_LIMIT = "time_limit"
    CONTEXT_OVERFLOW = "context_overflow"
    """The prompt did not fit the policy's context window."""
    FAILED = "failed"
    """An outage outside the policy. Not scored; counted and reported."""
