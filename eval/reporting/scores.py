"""Which scores an evaluation has, what they are called, and where they stand in ``results.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from atommem.envs.scoring.records import EpisodeRecord, metric_names
from atommem.envs.scoring.statistics import clustered_estimate

METRICS = ("em", "f1", "sub_em", "gaia", "judge", "reward")
"""Scores of answers: the ones that rows are tested in. Only their numbers can be bold."""

FACTS = ("fact_entered", "fact_kept", "fact_retrieved")
"""Supporting-fact recall (`atommem.envs.longdoc.fact_recall`)."""

LABELS = {
    "em": "EM",
    "f1": "F1",
    "sub_em": "sub-EM",
    "gaia": "GAIA",
    "judge": "Judge",
    "judge_unreadable": "Judge unreadable",
    "reward": "Reward",
    "fact_entered": "Fact entered",
    "fact_kept": "Fact kept",
    "fact_retrieved": "Fact retrieved",
    "sufficiency": "Sufficiency",
    "group_answer_sufficiency_f1": "Grouped F1",
    "group_answer_sufficiency_em": "Grouped EM",
    "evidence_recall": "Evidence recall",
    "evidence_shown": "Evidence shown",
    "truncated": "Truncated",
    "context_kept": "Context kept",
}


def label(metric: str) -> str:
    """A score's heading."""
    return LABELS.get(metric, metric)


def main_score(item: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The estimate of the score that stands for all (`atommem.envs.scoring.records.main_metric`).

    None where the summary, or cell or category of ``results.json``, has none; and where prompts did not fit, for then
    it is that of some episodes only.
    """
    return None if item["overflow"] else item["metrics"].get(item["metric"])


def main_label(items: Iterable[Mapping[str, Any]]) -> str:
    """What the main score of several cells is called: "EM", or "EM / Reward" where environments differ."""
    return " / ".join(dict.fromkeys(label(item["metric"]) for item in items)) or label("em")


def ordered(metrics: Iterable[str]) -> list[str]:
    """Scores in the order in which they are shown: those of answers, others by name, fact recall."""
    found = set(metrics)
    others = sorted(found - {*METRICS, *FACTS})
    return [name for name in (*METRICS, *others, *FACTS) if name in found]


def metrics_of(cells: Iterable[Mapping[str, Any]]) -> list[str]:
    """The scores that any of the cells has."""
    return ordered(name for cell in cells for name in cell["metrics"])


def episode_metrics(records: Sequence[EpisodeRecord]) -> dict[str, dict[str, Any]]:
    """Numbers of whole episodes in [0, 1] that are no scores of questions (``truncated``), each as an estimate."""
    of_questions = {
        name for record in records for question in record.questions for name in question.metrics
    }
    names = sorted(
        {name for record in records for name in record.metrics}
        - (of_questions or {*metric_names(records)})
    )
    found = {}
    for name in names:
        having = [record for record in records if name in record.metrics]
        if all(0 <= record.metrics[name] <= 1 for record in having):
            groups = [record.group or record.task_id for record in having]
            found[name] = asdict(
                clustered_estimate([record.metrics[name] for record in having], groups)
            )
    return found
