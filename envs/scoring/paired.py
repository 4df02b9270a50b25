"""Two evaluations compared, question by question."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from atommem.envs.scoring.records import EpisodeRecord
from atommem.envs.scoring.statistics import Difference, paired_difference


@dataclass(frozen=True)
class Comparison:
    """Two evaluations on the questions that both have scored.

    Attributes:
        metric: The score (`EpisodeRecord.scores`).
        wins, losses, ties: Tasks on which the second one's mean score is higher, lower, equal.
        difference: Second minus first over questions; None without a common question.
        changes: By task id, mean of second minus first, in the order of the first records.
        left_out: Tasks with a score on one side only.
    """

    metric: str
    wins: int
    losses: int
    ties: int
    difference: Difference | None
    changes: dict[str, float]
    left_out: int

    @property
    def p_value(self) -> float:
        """The p-value of `difference`; 1 without one."""
        return 1.0 if self.difference is None else self.difference.p_value

    def to_json(self) -> dict[str, Any]:
        """Return all but the tasks, as JSON values."""
        values = {**asdict(self), "tasks": len(self.changes), "p_value": self.p_value}
        del values["changes"]
        missing = {"difference": None, "low": None, "high": None, "questions": 0, "units": 0}
        return values | (values["difference"] or missing)


def compare(
    before: Sequence[EpisodeRecord], after: Sequence[EpisodeRecord], metric: str = "em"
) -> Comparison:
    """Pair the questions of two evaluations and test whether one is better.

    A question's score is the mean over its episodes, and every question counts the same. Questions
    without a score in one of the two are left out.
    """
    first, second = (question_scores(records, metric) for records in (before, after))
    # Means of the same scores added up in another order may differ in the last bit.
    gaps = {
        key: round(fmean(second[key][2]) - fmean(scores), 9)
        for key, (*_, scores) in first.items()
        if key in second
    }
    by_task: dict[str, list[float]] = {}
    for (task, _), gap in gaps.items():
        by_task.setdefault(task, []).append(gap)
    changes = {task: round(fmean(found), 9) + 0.0 for task, found in by_task.items()}
    wins = sum(change > 0 for change in changes.values())
    losses = sum(change < 0 for change in changes.values())
    units = [first[key][0] for key in gaps]
    labels = [first[key][1] for key in gaps]
    return Comparison(
        metric=metric,
        wins=wins,
        losses=losses,
        ties=len(changes) - wins - losses,
        difference=paired_difference([*gaps.values()], units, labels) if gaps else None,
        changes=changes,
        left_out=len({task for side in (first, second) for task, _ in side} - changes.keys()),
    )


def question_scores(
    records: Iterable[EpisodeRecord], metric: str
) -> dict[tuple[str, int], tuple[str, Hashable, list[float]]]:
    """Return unit, label and scores of each question, by task id and place among its questions."""
    found: dict[tuple[str, int], tuple[str, Hashable, list[float]]] = {}
    for record in records:
        for place, label, score in record.placed(metric):
            key = (record.task_id, place)
            found.setdefault(key, (record.unit, label, []))[2].append(score)
    return found
