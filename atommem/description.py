"""Descriptions of tasks for scores, reports and traces."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class QuestionDescription:
    """A question with its gold answers.

    `category` is the benchmark's, if it reports categories apart (LoCoMo). `attributes` are further
    values by which scores can be broken down (``type``, ``hops``, ...).
    """

    text: str
    golds: tuple[str, ...] = ()
    id: str = ""
    category: str = ""
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskDescription:
    """A task as records, reports and traces show it.

    Attributes:
        id: Unique in its file.
        source: Its origin (``hotpotqa``, ...).
        questions: In the order of the score's answers.
        group: The cluster of its scores, such as a conversation that tasks share.
    """

    id: str
    source: str = ""
    questions: tuple[QuestionDescription, ...] = ()
    group: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values: the ``task`` of a trace's header."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TaskShape:
    """The mean size of the tasks in a file.

    Attributes:
        source: The origin of the numbers, in words.
        tasks: The number of tasks.
        documents: Of a task, if nothing else is known of its stream.
        stream_steps, stream_tokens: Steps that show something new, and the tokens of each.
        questions, question_tokens: Of a task; questions of one step count as one.
        reads: Further steps that a question may take before its answer.
        same_stream: Whether a step shows the same to all episodes of a task.
    """

    source: str
    tasks: int
    documents: float
    stream_steps: float
    stream_tokens: float
    questions: float
    question_tokens: float
    reads: int
    same_stream: bool = True
