"""Scores by what benchmarks say of a question: type, level, hops, position of the evidence; and number of questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from atommem.envs.scoring.records import EpisodeRecord, QuestionRecord, estimates, metric_names

QUESTIONS = "questions"
"""Name of the breakdown by how many questions a task asks."""
ORDER = (
    "category",
    "type",
    "subset",
    "level",
    "hops",
    "answerable",
    QUESTIONS,
    "first evidence",
    "last evidence",
)
"""The order in which breakdowns are shown; others come after them, by name."""

_Read = Callable[[EpisodeRecord, QuestionRecord], str]


def breakdowns(
    records: Sequence[EpisodeRecord], metrics: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Tidy rows: one for each attribute, each of its values, and each score.

    Args:
        records: Of one evaluation, or of several seeds of it.
        metrics: Scores to break down; all that the records have (`metric_names`) where not given.

    Returns:
        ``by`` (the attribute), ``value``, ``metric``, and the estimate (`atommem.envs.scoring.statistics.Estimate`:
        mean, low, high, n, clusters, effective_n, unit). An attribute is left out where all questions have the same
        value, or none has one; questions without it are in no row.
    """
    names = metric_names(records) if metrics is None else metrics
    rows = []
    for by in _attributes(records):
        read = _reader(by)
        values = {read(record, question) for record in records for question in record.questions} - {
            ""
        }
        if len(values) < 2:
            continue
        for value in sorted(values, key=_natural):
            found = estimates(_chosen(records, read, value), names)
            rows += [
                {"by": by, "value": value, "metric": name, **estimate}
                for name, estimate in found.items()
            ]
    return rows


def _attributes(records: Sequence[EpisodeRecord]) -> list[str]:
    found = {
        name for record in records for question in record.questions for name in question.attributes
    }
    return [*ORDER, *sorted(found - {*ORDER})]


def _reader(by: str) -> _Read:
    """How the value of an attribute is read off a question and its episode; "" where it has none."""
    if by == "category":
        return lambda record, question: question.category
    if by == QUESTIONS:
        return lambda record, question: str(len(record.questions))
    return lambda record, question: question.attributes.get(by, "")


def _chosen(records: Sequence[EpisodeRecord], read: _Read, value: str) -> list[EpisodeRecord]:
    """The questions with this value; of those that have no score, the episode's own scores do not speak."""
    return [
        replace(record, metrics={}, reward=None, questions=questions)
        for record in records
        if (questions := tuple(item for item in record.questions if read(record, item) == value))
    ]


def _natural(value: str) -> tuple[float, str]:
    """Sorts 2 before 10, "20-40%" before "100%", and words after numbers."""
    digits = value.partition("-")[0].strip("%")
    return (float(digits) if digits.isdecimal() else float("inf")), value
