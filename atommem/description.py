"""What a reader of scores, reports and traces needs to know of a task: an environment describes its tasks in this."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class QuestionDescription:
    """A question with the answers that count as right.

    `category` is the benchmark's, where it reports its categories apart (LoCoMo).
    """

    text: str
    golds: tuple[str, ...] = ()
    id: str = ""
    category: str = ""


@dataclass(frozen=True, slots=True)
class TaskDescription:
    """A task as records, reports and traces name it, in whatever form its environment holds it.

    Attributes:
        id: Tells it from the other tasks of its file.
        source: Where it comes from (``hotpotqa``, ...).
        questions: In the order in which the environment's score answers them; none where nothing is asked.
    """

    id: str
    source: str = ""
    questions: tuple[QuestionDescription, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON values: the ``task`` of a trace's header."""
        return asdict(self)
