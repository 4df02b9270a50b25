"""Observations, and the reasons for which episodes end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


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
