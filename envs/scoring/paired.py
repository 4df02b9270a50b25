"""Two evaluations compared, question by question."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from atommem.envs.scoring.records import EpisodeRecord, unit_of
from atommem.envs.scoring.statistics import Difference, paired_difference


@dataclass(frozen=True)
class Comparison:
    """Two evaluations on the questions that both have a score of.

    Attributes:
        metric: The score (`EpisodeRecord.scores`).
        wins, losses, ties: Tasks on which the second one's mean score is higher, lower, equal.
        difference: Second minus first, over questions, with its interval and test; None without a common question.
        changes: By task id, the mean over its questions of second minus first, exactly 0 where they are equal; in
            the order of the first one's records.
        left_out: Tasks with a score on one side only (failed or absent on the other, or prompts did not fit).
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
        """Of the sign-flip test of `difference`; 1 where there is none."""
        return 1.0 if self.difference is None else self.difference.p_value

    def to_json(self) -> dict[str, Any]:
        """All but the tasks, as JSON values."""
        nothing = {
            "difference": None,
            "low": None,
            "high": None,
            "questions": 0,
            "units": 0,
            "p_value": 1.0,
        }
        return {
            "metric": self.metric,
            "tasks": len(self.changes),
            "left_out": self.left_out,
            "wins": self.wins,
            "losses": self.losses,
            "ties": self.ties,
            **(nothing if self.difference is None else asdict(self.difference)),
        }


def compare(
    before: Sequence[EpisodeRecord], after: Sequence[EpisodeRecord], metric: str = "em"
) -> Comparison:
    """Pair the questions of two evaluations, and test whether one is better.

    A question's score is the mean over its episodes; every question counts the same, as in the means that tables show.
    Questions without a score in one of the two are left out.

    Args:
        before, after: Records of the two. Where their tasks may differ under the same ids, give
            `atommem.eval.reporting.evaluations.Evaluation.paired_records`.
        metric: Any score (`EpisodeRecord.scores`).
    """
    sides = [question_scores(records, metric) for records in (before, after)]
    labels = {key: value[:2] for key, value in sides[0].items() if key in sides[1]}
    # Means of the same scores added up in another order may differ in the last bit.
    gaps = {key: round(fmean(sides[1][key][2]) - fmean(sides[0][key][2]), 9) for key in labels}
    by_task: dict[str, list[float]] = {}
    for (task, _), gap in gaps.items():
        by_task.setdefault(task, []).append(gap)
    changes = {task: round(fmean(found), 9) + 0.0 for task, found in by_task.items()}
    wins = sum(change > 0 for change in changes.values())
    losses = sum(change < 0 for change in changes.values())
    groups, questions = (
        [group for group, _ in labels.values()],
        [question for _, question in labels.values()],
    )
    return Comparison(
        metric=metric,
        wins=wins,
        losses=losses,
        ties=len(changes) - wins - losses,
        difference=paired_difference(list(gaps.values()), groups, questions) if gaps else None,
        changes=changes,
        left_out=len({task for side in sides for task, _ in side} - changes.keys()),
    )


def question_scores(
    records: Iterable[EpisodeRecord], metric: str
) -> dict[tuple[str, int], tuple[str, Hashable, list[float]]]:
    """By task id and place among its questions: what a question varies together with, what it is, and its scores."""
    found: dict[tuple[str, int], tuple[str, Hashable, list[float]]] = {}
    for record in records:
        for place, question, score in record.placed(metric):
            found.setdefault((record.task_id, place), (unit_of(record), question, []))[2].append(
                score
            )
    return found
