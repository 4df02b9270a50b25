"""Finished episodes as lines of ``episodes.jsonl``, their numbers, and pairs of evaluations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

import msgspec

from atommem.environment import TaskDescription
from atommem.envs.scoring.statistics import Difference, clustered_estimate, paired_difference
from atommem.episode import Episode, StopReason, add_sums, episode_sums, means
from atommem.errors import DataError

_ORDER = ("category", "type", "level", "hops", "questions")
"""The order of breakdowns; others follow by name."""


@dataclass(frozen=True, slots=True)
class QuestionRecord:
    """A question, its answer, its scores, and the attributes that `breakdowns` groups by."""

    id: str
    question: str
    answer: str | None
    golds: tuple[str, ...]
    category: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def right(self) -> bool | None:
        """Whether it was answered right, by exact match; None without it."""
        return bool(self.metrics["em"]) if "em" in self.metrics else None


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """An episode without its steps, which are in its trace."""

    task_id: str
    sample: int
    source: str
    stop_reason: str
    error: str | None  # what failed
    reward: float | None  # None if it failed or its task has no gold answers
    metrics: dict[str, float]  # empty then
    questions: tuple[QuestionRecord, ...]  # empty if it failed or nothing is asked
    sums: dict[str, float]  # `atommem.episode.episode_sums`
    seconds: float
    prompt_tokens: int = 0  # of all completed calls, also if it failed later
    completion_tokens: int = 0
    group: str = ""  # the cluster of its scores (`atommem.environment.TaskDescription`)

    @property
    def key(self) -> tuple[str, int]:
        return self.task_id, self.sample

    @property
    def failed(self) -> bool:
        """Whether an outage ended the episode: it has no score."""
        return self.stop_reason == StopReason.FAILED

    @property
    def overflowed(self) -> bool:
        """Whether a prompt did not fit the policy's window: the episode has no score."""
        return self.stop_reason == StopReason.CONTEXT_OVERFLOW

    @property
    def unit(self) -> str:
        """The cluster that its scores vary with: its group, or else its task alone."""
        return f"group {self.group}" if self.group else f"task {self.task_id}"

    def scores(self, metric: str) -> list[float]:
        """Return the scores of its questions, or else the episode's own (also ``reward``)."""
        return [score for _, _, score in self.placed(metric)]

    def placed(self, metric: str) -> list[tuple[int, Hashable, float]]:
        """Return `scores` with the place of each question (-1: the episode's own) and a label.

        The label is the same where a question is asked again: its id, text and gold answers. Failed
        and overflowed episodes have no score.
        """
        if self.overflowed:
            return []
        found: list[tuple[int, Hashable, float]] = []
        for place, one in enumerate(self.questions):
            if metric in one.metrics:
                label = (one.id, one.question, one.golds) if one.id else (self.task_id, place)
                found.append((place, label, one.metrics[metric]))
        own = self.reward if metric == "reward" else self.metrics.get(metric)
        return found or ([] if own is None else [(-1, self.task_id, own)])

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> EpisodeRecord:
        """Return the record of JSON values; DataError if a field is missing or of another type."""
        try:
            return msgspec.convert(values, cls)
        except msgspec.ValidationError as error:
            raise DataError(f"not an episode record: {error}") from error


def record_of(
    task: TaskDescription, episode: Episode, diagnosed: Sequence[Mapping[str, float]] | None = None
) -> EpisodeRecord:
    """Return the record of an episode; `diagnosed` has further metrics of each question."""
    asked = () if episode.failed else task.questions
    count = len(task.questions)
    answers = episode.answers or (None,) * count
    metrics = episode.question_metrics or ({},) * count
    further = diagnosed or ({},) * count
    if not (episode.failed or len(answers) == len(metrics) == len(further) == count):
        raise DataError(
            f"task {task.id!r} has {count} questions, but its score {len(answers)} answers and "
            f"{len(metrics)} question_metrics, and its diagnosis {len(further)}: give one each."
        )
    questions = tuple(
        QuestionRecord(
            *(item.id, item.text, answer, item.golds, item.category),
            metrics={**scores, **more},
            attributes=item.attributes,
        )
        for item, answer, scores, more in zip(asked, answers, metrics, further, strict=False)
    )
    return EpisodeRecord(
        task_id=task.id,
        sample=episode.sample,
        source=task.source,
        stop_reason=str(episode.stop_reason),
        error=episode.error,
        reward=episode.reward,
        metrics=episode.metrics,
        questions=questions,
        sums=episode_sums([episode]),
        seconds=episode.seconds,
        prompt_tokens=sum(step.prompt_tokens for step in episode.steps),
        completion_tokens=sum(step.completion_tokens for step in episode.steps),
        group=task.group,
    )


def main_metric(records: Iterable[EpisodeRecord]) -> str:
    """Return the score that stands for all: ``em``, or ``reward`` where none has exact match."""
    scored = [record for record in records if not record.failed and not record.overflowed]
    return "reward" if scored and not any(record.scores("em") for record in scored) else "em"


def metric_names(records: Sequence[EpisodeRecord]) -> list[str]:
    """Return the names of all scores in [0, 1], of questions or else of episodes."""
    questions = [question for record in records for question in record.questions]
    names = {name for question in questions for name in question.metrics}
    names = names or {name for record in records for name in record.metrics}
    if any(not record.failed for record in records):
        names |= {main_metric(records)}
    names |= {"reward"} & {name for record in records for name in record.metrics}  # the user's own
    # An environment may count things too, which have no interval of a proportion.
    return [
        name
        for name in sorted(names)
        if all(0 <= score <= 1 for record in records for score in record.scores(name))
    ]


def estimates(records: Sequence[EpisodeRecord], metrics: Iterable[str]) -> dict[str, Any]:
    """Return the mean of each score over all questions with its interval (`Estimate` as a dict)."""
    found = {}
    for metric in metrics:
        placed = [(record.unit, *item) for record in records for item in record.placed(metric)]
        if placed:
            units, _, labels, scores = zip(*placed, strict=True)
            found[metric] = asdict(clustered_estimate(scores, units, labels))
    return found


def summarize(records: Iterable[EpisodeRecord]) -> dict[str, Any]:
    """Return scores with their intervals (``metrics``) and rates of what happened (``means``).

    ``metric`` is the main score's name; ``errors`` counts the messages that ended episodes.
    """
    items = list(records)
    names = metric_names(items)
    rates = means(add_sums([episode_sums([]), *(record.sums for record in items)]))
    for name in {*names} - {"reward"}:
        rates.pop(name, None)  # means over episodes; the scores below are means over questions
    return {
        "episodes": len(items),
        "failed": sum(record.failed for record in items),
        "overflow": sum(record.overflowed for record in items),
        "metric": main_metric(items),
        "metrics": estimates(items, names),
        "means": rates,
        "errors": dict(Counter(record.error or "unknown" for record in items if record.failed)),
    }


def breakdowns(records: Sequence[EpisodeRecord]) -> list[dict[str, Any]]:
    """Return scores by attribute of the questions, of one evaluation or of several seeds of it.

    Each has ``by`` (the attribute; ``questions`` is the number of the task's), ``value``,
    ``metric``, and the estimate. Attributes with one value are left out.
    """
    names = metric_names(records)
    groups: dict[str, dict[str, list[EpisodeRecord]]] = {}
    for record in records:
        chosen: dict[tuple[str, str], list[QuestionRecord]] = {}
        for question in record.questions:
            values = {**question.attributes, "questions": str(len(record.questions))}
            for item in {**values, "category": question.category}.items():
                chosen.setdefault(item, []).append(question)
        for (by, value), questions in chosen.items():
            # Questions without a score do not get the episode's own.
            part = replace(record, metrics={}, reward=None, questions=tuple(questions))
            if value:
                groups.setdefault(by, {}).setdefault(value, []).append(part)
    return [
        {"by": by, "value": value, "metric": metric, **estimate}
        for by in [*_ORDER, *sorted(groups.keys() - {*_ORDER})]
        if len(parts := groups.get(by, {})) > 1
        # 2 comes before 10, and words come after numbers.
        for value in sorted(parts, key=lambda v: (float(v) if v.isdecimal() else math.inf, v))
        for metric, estimate in estimates(parts[value], names).items()
    ]


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The records of an evaluation."""

    records: tuple[EpisodeRecord, ...]

    @property
    def failed(self) -> int:
        return sum(record.failed for record in self.records)

    @property
    def em(self) -> float:
        return self.mean("em")

    def mean(self, metric: str) -> float:
        """Return the mean of a score over all questions that have it; NaN without any."""
        scores = [score for record in self.records for score in record.scores(metric)]
        return fmean(scores) if scores else math.nan

    def summary(self) -> dict[str, Any]:
        return summarize(self.records)


@dataclass(frozen=True)
class Comparison:
    """Two evaluations on the questions that both have scored."""

    metric: str  # the score (`EpisodeRecord.scores`)
    wins: int  # tasks on which the second one's mean score is higher
    losses: int
    ties: int
    difference: Difference | None  # second minus first over questions; None without a common one
    changes: dict[str, float]  # the same by task, in the order of the first records
    left_out: int  # tasks with a score on one side only

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
