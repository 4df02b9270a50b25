"""Which scores an evaluation has, what they are called, and where they stand in ``results.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from atommem.envs.scoring.records import EpisodeRecord
from atommem.envs.scoring.statistics import clustered_estimate

METRICS = ("em", "f1", "sub_em", "judge")
"""Scores of answers: the ones that rows are tested in. Only their numbers can be bold."""

FACTS = ("fact_entered", "fact_kept", "fact_retrieved")
"""Supporting-fact recall (`atommem.envs.scoring.fact_recall`)."""

LABELS = {
    "em": "EM",
    "f1": "F1",
    "sub_em": "sub-EM",
    "judge": "Judge",
    "fact_entered": "Fact entered",
    "fact_kept": "Fact kept",
    "fact_retrieved": "Fact retrieved",
    "truncated": "Truncated",
    "context_kept": "Context kept",
}


def label(metric: str) -> str:
    """A score's heading."""
    return LABELS.get(metric, metric)


def score_of(item: Mapping[str, Any], metric: str) -> Mapping[str, Any] | None:
    """The estimate of a score in a cell (or category) of ``results.json``; None where it has none."""
    found: Mapping[str, Any] | None = item[metric] if metric in ("em", "f1") else item["metrics"].get(metric)
    return found


def metrics_of(cells: Iterable[Mapping[str, Any]]) -> list[str]:
    """The scores of questions that any of the cells has: those of answers, others by name, fact recall."""
    given = list(cells)
    found = {name for cell in given for name in ("em", "f1", *cell["metrics"]) if score_of(cell, name) is not None}
    others = sorted(found - {*METRICS, *FACTS})
    return [name for name in (*METRICS, *others, *FACTS) if name in found]


def metrics_of_records(records: Iterable[EpisodeRecord]) -> list[str]:
    """Those of `METRICS` that any question of the records has."""
    found = {"em", "f1"}
    for record in records:
        for question in record.questions:
            found.update(question.metrics)
    return [name for name in METRICS if name in found]


def episode_metrics(records: Sequence[EpisodeRecord]) -> dict[str, dict[str, Any]]:
    """Numbers of whole episodes in [0, 1] that are no scores of questions (``truncated``), each as an estimate."""
    of_questions = {name for record in records for question in record.questions for name in question.metrics}
    names = sorted({name for record in records for name in record.metrics} - of_questions - {*METRICS})
    found = {}
    for name in names:
        clusters: dict[str, list[float]] = {}
        for record in records:
            if name in record.metrics:
                clusters.setdefault(record.task_id, []).append(record.metrics[name])
        if all(0 <= value <= 1 for values in clusters.values() for value in values):
            estimate = clustered_estimate(list(clusters.values()))
            found[name] = {
                key: getattr(estimate, key) for key in ("mean", "low", "high", "n", "clusters", "effective_n")
            }
    return found
