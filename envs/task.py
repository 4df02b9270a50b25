"""A task: question(s), gold answers, and the documents to read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from atommem.environment import QuestionDescription, TaskDescription
from atommem.episode import Piece


@dataclass(frozen=True, slots=True)
class Question:
    """A question and every answer that counts as right (the first is the canonical one); none where it is not known."""

    text: str
    answers: tuple[str, ...]
    id: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)

    def with_documents(self, places: Iterable[int]) -> Question:
        """The same question, with the places (from 0) of its gold documents in its task as ``documents``."""
        return replace(self, metadata={**self.metadata, "documents": sorted(places)})


@dataclass(frozen=True, slots=True)
class Document:
    """A piece of the stream. `gold` marks documents that the questions need."""

    title: str
    text: str
    gold: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """One unit of data.

    `context` is used instead of `documents` where a file brings its text ready joined (MemAgent's).
    """

    id: str
    questions: tuple[Question, ...]
    documents: tuple[Document, ...] = ()
    context: str | None = None
    source: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


class ByIdentity:
    """A task as a key, which keeps it: files may use one id for different tasks, and metadata has no hash."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def __hash__(self) -> int:
        return id(self.task)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.task is other.task


_ATTRIBUTES = ("type", "level", "hops", "subset", "answerable")
"""What benchmarks say of a question (its metadata), as far as scores are reported by it."""


def describe_task(task: Task) -> TaskDescription:
    """What records, reports and traces say of `task`."""
    questions = (
        QuestionDescription(
            item.text,
            item.answers,
            item.id,
            str(item.metadata.get("category", "")),
            _attributes(item, task),
        )
        for item in task.questions
    )
    return TaskDescription(
        task.id, task.source, tuple(questions), str(task.metadata.get("sample_id", ""))
    )


def _attributes(question: Question, task: Task) -> dict[str, str]:
    """What scores can be broken down by: the benchmark's own, and in which fifths of the text the evidence lies."""
    found = {
        name: str(question.metadata[name]) for name in _ATTRIBUTES if name in question.metadata
    }
    places, count = question.metadata.get("documents"), len(task.documents)
    if places:
        found |= {
            "first evidence": _fifth(min(places), count),
            "last evidence": _fifth(max(places), count),
        }
    return found


def _fifth(place: int, count: int) -> str:
    """Where document `place` (from 0) of `count` lies: in the first fifth of the text ("0-20%"), the second, ..."""
    fifth = 5 * place // count
    return f"{20 * fifth}-{20 * fifth + 20}%"


def questions_piece(texts: Sequence[str]) -> Piece:
    """The questions that are shown, as a piece of an observation: one as it is, several numbered."""
    if len(texts) == 1:
        return Piece("questions", {"questions": texts[0]})
    lines = (
        Piece("question_line", {"number": number, "text": text})
        for number, text in enumerate(texts, start=1)
    )
    return Piece("questions", {"questions": tuple(lines)})
