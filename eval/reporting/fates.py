"""Where an answer was lost on its way from the stream to the policy's mouth: one fate for each question.

Two ways to tell, never mixed in one comparison: by supporting-fact recall, where the tasks mark their gold documents
(the same numbers as the scores ``fact_entered``, ``fact_kept`` and ``fact_retrieved``), or else by the words of the
gold answers (`atommem.eval.reporting.inspection`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from atommem.envs.scoring.records import EpisodeRecord, QuestionRecord
from atommem.eval.reporting.inspection import AnswerTrail


class Fate(StrEnum):
    """How a question ended. Every question that is counted has one of these."""

    RIGHT = "right"
    """Right, with what it takes in front of the policy."""
    RIGHT_OTHERWISE = "right_otherwise"
    """Right, though nothing that was shown held it: from the chunk, by knowledge, reworded, or by luck."""
    MISREAD = "misread"
    """Shown, and answered wrong."""
    NOT_RETRIEVED = "not_retrieved"
    """Memory held it to the end, but it was not shown."""
    FORGOTTEN = "forgotten"
    """It entered memory and was lost: overwritten, deleted or evicted."""
    NEVER_ENTERED = "never_entered"
    """No write carried it."""


def fate_by_facts(question: QuestionRecord) -> Fate | None:
    """By supporting-fact recall (`atommem.envs.longdoc.fact_recall`); None for a question without a fact."""
    numbers = question.metrics
    if "fact_entered" not in numbers or question.right is None:
        return None
    return _decide(
        question.right,
        entered=bool(numbers["fact_entered"]),
        kept=bool(numbers["fact_kept"]),
        shown=bool(numbers["fact_retrieved"]),
    )


def fate_by_words(trail: AnswerTrail) -> Fate | None:
    """By the words of the gold answers, where tasks do not mark gold documents; None if they cannot be located."""
    if not trail.located or trail.right is None:
        return None
    return _decide(trail.right, entered=trail.entered, kept=trail.kept, shown=trail.shown)


def _decide(right: bool, *, entered: bool, kept: bool, shown: bool) -> Fate:
    if right:
        return Fate.RIGHT if shown else Fate.RIGHT_OTHERWISE
    if shown:
        return Fate.MISREAD
    if kept:
        return Fate.NOT_RETRIEVED
    return Fate.FORGOTTEN if entered else Fate.NEVER_ENTERED


def knows_facts(records: Sequence[EpisodeRecord]) -> bool:
    """Whether supporting-fact recall was scored in these records; so it was if they hold no question at all."""
    questions = [question for record in records for question in record.questions]
    return not questions or any("fact_entered" in question.metrics for question in questions)


@dataclass
class Losses:
    """How many questions had which fate.

    Attributes:
        by: ``facts`` or ``words``: how it was told.
        questions: All of them; those without a fate (no sentence, or no text, can hold the answer) are in no count.
        counts: By fate.
    """

    by: str
    questions: int = 0
    counts: Counter[Fate] = field(default_factory=Counter)

    def fate(self, question: QuestionRecord, trail: AnswerTrail | None) -> Fate | None:
        """The fate of a question; by words it takes the episode's trace."""
        if self.by == "facts":
            return fate_by_facts(question)
        return None if trail is None else fate_by_words(trail)

    def add(self, fate: Fate | None) -> None:
        """Count one question."""
        self.questions += 1
        if fate is not None:
            self.counts[fate] += 1

    def written_beforehand(self) -> None:
        """Nothing has to enter a memory that is the documents themselves: what was not shown was not retrieved."""
        self.counts[Fate.NOT_RETRIEVED] += self.counts.pop(Fate.NEVER_ENTERED, 0)

    def to_json(self) -> dict[str, Any]:
        """As in ``results.json``."""
        counts = {str(fate): self.counts[fate] for fate in Fate}
        return {"by": self.by, "questions": self.questions, "counted": sum(counts.values()), **counts}
