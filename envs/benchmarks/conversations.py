"""What benchmarks of long conversations have in common: one stream, about which a good many questions are asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from atommem.envs.task import Document, Question, Task

QUESTIONS = 10
"""Questions of a task: a conversation has up to some two hundred."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and the places (from 0) of the documents that hold its evidence; None where nothing marks them."""

    question: Question
    places: frozenset[int] | None = None


def grouped_tasks(
    source: str,
    sample: str,
    asked: Sequence[Asked],
    documents: Sequence[Document] = (),
    context: str | None = None,
    size: int = QUESTIONS,
    **metadata: Any,
) -> Iterator[Task]:
    """Tasks of `size` questions, each of which reads the conversation from its beginning: ``SOURCE-SAMPLE-NUMBER``.

    Args:
        source: The benchmark's name.
        sample: The conversation's; tasks that share it vary together (`Task.metadata`, ``sample_id``).
        asked: All questions about it.
        documents, context: The conversation, as turns or as one text. Gold is what holds a task's evidence.
        size: Questions of a task, the last one of a conversation excepted.
        metadata: What else the tasks say of themselves.
    """
    for number, start in enumerate(range(0, len(asked), size)):
        group = asked[start : start + size]
        gold = frozenset().union(*(item.places or () for item in group))
        yield Task(
            id=f"{source}-{sample}-{number:03d}",
            questions=tuple(
                item.question if item.places is None else item.question.with_documents(item.places)
                for item in group
            ),
            documents=tuple(
                Document(document.title, document.text, place in gold)
                for place, document in enumerate(documents)
            ),
            context=context,
            source=source,
            metadata={"sample_id": sample, **metadata},
        )
