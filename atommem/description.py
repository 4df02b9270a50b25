"""What a reader of scores, reports and traces needs to know of a task: an environment describes its tasks in this."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class QuestionDescription:
    """A question with the answers that count as right.

    `category` is the benchmark's, where it reports its categories apart (LoCoMo). `attributes` are what else scores can
    be broken down by: a name (``type``, ``hops``, ...) and this question's value.
    """

    text: str
    golds: tuple[str, ...] = ()
    id: str = ""
    category: str = ""
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskDescription:
    """A task as records, reports and traces name it, in whatever form its environment holds it.

    Attributes:
        id: Tells it from the other tasks of its file.
        source: Where it comes from (``hotpotqa``, ...).
        questions: In the order in which the environment's score answers them; none where nothing is asked.
        group: What several tasks are about (a conversation), so that their scores vary together; empty for none.
    """

    id: str
    source: str = ""
    questions: tuple[QuestionDescription, ...] = ()
    group: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON values: the ``task`` of a trace's header."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TaskShape:
    """How long the tasks of a file are, in the mean.

    Attributes:
        source: Where the numbers come from, in words.
        tasks: In the file.
        documents: Of a task, where that is all that is known of its stream.
        stream_steps, stream_tokens: Steps at which something new is shown, and its tokens at each.
        questions, question_tokens: Of a task. Questions that are asked at one step count as one.
        reads: Further steps that a question may take before it must be answered.
        same_stream: Whether all episodes of a task are shown the same at a step, whatever their policy did.
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
