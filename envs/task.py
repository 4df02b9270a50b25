"""A task: question(s), gold answers, and the documents to read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from atommem.environment import QuestionDescription, TaskDescription
from atommem.episode import Piece

_ATTRIBUTES = ("type", "level", "hops")
"""Metadata of questions by which scores are reported."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its gold answers, the canonical one first; none if they are unknown."""

    text: str
    answers: tuple[str, ...] = ()
    id: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)

    def with_documents(self, places: Iterable[int]) -> Question:
        """Return the question with the places (from 0) of its gold documents in its metadata."""
        return replace(self, metadata={**self.metadata, "documents": sorted({*places})})


@dataclass(frozen=True, slots=True)
class Document:
    """A piece of the stream. `gold` marks documents that the questions need."""

    title: str
    text: str
    gold: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """One unit of data; `context` replaces `documents` if the text comes ready joined."""

    id: str
    questions: tuple[Question, ...]
    documents: tuple[Document, ...] = ()
    context: str | None = None
    source: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


class ByIdentity:
    """A task as a key: files may share ids, and metadata has no hash."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def __hash__(self) -> int:
        return id(self.task)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.task is other.task


def describe_task(task: Task) -> TaskDescription:
    """Return `task` as records, reports and traces show it."""
    questions = tuple(
        QuestionDescription(
            question.text,
            question.answers,
            question.id,
            str(question.metadata.get("category", "")),
            {
                name: str(question.metadata[name])
                for name in _ATTRIBUTES
                if name in question.metadata
            },
        )
        for question in task.questions
    )
    group = str(task.metadata.get("sample_id", ""))
    return TaskDescription(task.id, task.source, questions, group)


def questions_piece(texts: Sequence[str]) -> Piece:
    """Return the questions as a piece of an observation; several are numbered."""
    if len(texts) == 1:
        return Piece("questions", {"questions": texts[0]})
    lines = (
        Piece("question_line", {"number": number, "text": text})
        for number, text in enumerate(texts, start=1)
    )
    return Piece("questions", {"questions": tuple(lines)})
