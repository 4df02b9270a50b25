"""``results.json``: evaluations as flat records of scores, breakdowns, means and tests."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from atommem.envs.scoring.records import EpisodeRecord, breakdowns, compare, summarize
from atommem.envs.scoring.statistics import holm, seed_spread
from atommem.errors import ConfigError
from atommem.eval.reporting.evaluations import Evaluation
from atommem.text_safety import clean

RESULTS = "results.json"
ALPHA = 0.05
BOUNDS = ("no_memory", "oracle")
"""Methods that bound the possible scores; they enter no test."""
METRICS = (
    *("em", "em_corrected", "f1", "f1_corrected", "sub_em"),
    *("net_recall", "oolong", "gaia", "judge", "reward"),
)
"""Scores of answers, which are tested."""
FACTS = ("fact_entered", "fact_kept", "fact_retrieved")
"""Supporting-fact recall (`atommem.envs.longdoc.evidence`)."""
LABELS = {
    "em": "EM",
    "em_corrected": "EM corrected",
    "f1": "F1",
    "f1_corrected": "F1 corrected",
    "sub_em": "sub-EM",
    "net_recall": "Net recall",
    "oolong": "OOLONG",
    "gaia": "GAIA",
    "judge": "Judge",
    "reward": "Reward",
    "fact_entered": "Fact entered",
    "fact_kept": "Fact kept",
    "fact_retrieved": "Fact retrieved",
}

STAGES = (
    "right",
    "right otherwise",  # from the chunk, by knowledge or by luck
    "shown, answered wrong",
    "kept, not shown",
    "entered, then lost",  # overwritten, deleted or evicted
    "never entered",
)
"""How a question ended: right, or the first stage at which its answer was lost."""

Results = dict[str, Any]
Groups = dict[tuple[str, str], list[Evaluation]]
"""The evaluations of each row and column, one per seed."""


def label(metric: str) -> str:
    return LABELS.get(metric, metric)


def ordered(metrics: Iterable[str]) -> list[str]:
    """Sort scores: those of answers, others by name, fact recall."""
    found = set(metrics)
    others = sorted(found - {*METRICS, *FACTS})
    return [name for name in (*METRICS, *others, *FACTS) if name in found]


def group_evaluations(evaluations: Sequence[Evaluation]) -> Groups:
    """Group evaluations by row and column, in order of appearance."""
    if not evaluations:
        raise ConfigError("There is no evaluation. Give at least one folder of `atommem eval`.")
    groups: Groups = {}
    for item in evaluations:
        group = groups.setdefault((item.row, item.column), [])
        if same := [other for other in group if other.seed == item.seed]:
            raise ConfigError(
                f"{same[0].folder} and {item.folder} are both {item.row!r} on {item.column} "
                f"with seed {item.seed}. Rename one: NAME=FOLDER."
            )
        group.append(item)
        group.sort(key=lambda item: item.seed)
    return groups


def make_results(
    evaluations: Sequence[Evaluation],
    *,
    title: str = "Evaluation",
    reference: str | None = None,
    base: Path = Path(),
) -> Results:
    """Compute the contents of ``results.json``.

    Args:
        reference: Row that every other row is tested against, beside best against runner-up.
        base: Folder that paths are relative to.

    Raises:
        ConfigError: `reference` is not a row, or evaluations cannot be told apart.
    """
    groups = group_evaluations(evaluations)
    rows = dict.fromkeys(row for row, _ in groups)
    if reference is not None and reference not in rows:
        raise ConfigError(f"reference={reference!r}: not a row. Choose of {', '.join(rows)}.")
    results: Results = {
        "title": title,
        "alpha": ALPHA,
        "reference": reference,
        "evaluations": [_evaluation(item, base) for group in groups.values() for item in group],
        "groups": [],
        "scores": [],
        "breakdowns": [],
    }
    for (row, column), group in groups.items():
        first = group[0]
        records = paired_records(group)
        summary = summarize(records)
        metrics = summary.pop("metrics")
        key = {"row": row, "column": column}
        results["groups"].append(
            {
                **key,
                "method": first.method,
                "dataset": first.dataset,
                "documents": first.documents,
                "seeds": [item.seed for item in group],
                "planned": sum(item.planned for item in group),
                "bound": first.manifest.get("method", {}).get("name", first.method) in BOUNDS,
                **summary,
                "lost": _lost_answers(records) if summary["means"].get("store_size") else {},
            }
        )
        by_seed = [summarize(item.records)["metrics"] for item in group]
        for metric in ordered(metrics):
            means = [found[metric]["mean"] for found in by_seed if metric in found]
            spread = {"between_seeds": seed_spread(means)}
            results["scores"].append({**key, "metric": metric, **metrics[metric], **spread})
        results["breakdowns"] += [
            {**key, **line, "value": clean(line["value"])} for line in breakdowns(records)
        ]
    results["comparisons"] = _comparisons(groups, results)
    return results


def paired_records(group: Iterable[Evaluation]) -> list[EpisodeRecord]:
    """Return the records of all seeds; equal task ids mean equal tasks."""
    return [
        replace(record, task_id=f"{item.tasks_digest[:12]}/{record.task_id}")
        for item in group
        for record in item.records
    ]


def scores_by_key(results: Results) -> dict[tuple[str, str, str], Mapping[str, Any]]:
    return {(line["row"], line["column"], line["metric"]): line for line in results["scores"]}


def _lost_answers(records: Iterable[EpisodeRecord]) -> dict[str, int]:
    """Count questions by stage, as far as tasks mark gold documents."""
    counts = dict.fromkeys(STAGES, 0)
    for record in records:
        for question in record.questions if not record.overflowed else ():
            facts = [question.metrics.get(name) for name in FACTS]
            if question.right is None or None in facts:
                continue
            entered, kept, shown = facts
            if question.right:
                stage = STAGES[0] if shown else STAGES[1]
            else:
                lost_at = (shown, kept, entered, True)
                stage = STAGES[2 + next(at for at, reached in enumerate(lost_at) if reached)]
            counts[stage] += 1
    return counts if any(counts.values()) else {}


def best_rows(results: Results, metric: str) -> dict[str, str]:
    """Return by column the row that beats the runner-up in a corrected test."""
    first: dict[str, Mapping[str, Any]] = {}
    for test in results["comparisons"]:
        if test["metric"] == metric:  # a column's first test is best against runner-up
            first.setdefault(test["column"], test)
    won = (test for test in first.values() if test["significant"] and test["difference"] > 0)
    return {test["column"]: test["second"] for test in won}


def _evaluation(item: Evaluation, base: Path) -> dict[str, Any]:
    labels = ("method", "setting", "dataset", "documents", "seed", "planned")
    return {
        "folder": os.path.relpath(item.folder.resolve(), base.resolve()),
        **{name: getattr(item, name) for name in labels},
        "tasks_sha256": item.tasks_digest,
        "episodes": len(item.records),
    }


def _comparisons(groups: Groups, results: Results) -> list[dict[str, Any]]:
    """Test best against runner-up, and rows against the reference; Holm-corrected per metric."""
    left_out = {
        (group["row"], group["column"])
        for group in results["groups"]
        if group["bound"] or group["overflow"]
    }
    records = {key: paired_records(group) for key, group in groups.items()}
    tests: list[dict[str, Any]] = []
    for metric in METRICS:
        means: dict[str, dict[str, float]] = {column: {} for _, column in groups}
        for (row, column, name), score in scores_by_key(results).items():
            if name == metric and (row, column) not in left_out:
                means[column][row] = score["mean"]
        family = []
        for column, by_row in means.items():
            for second, first in _pairs(by_row, results["reference"]):
                found = compare(records[first, column], records[second, column], metric)
                line = {"column": column, "first": first, "second": second}
                family.append(line | found.to_json())
        for test, p_value in zip(family, holm([test["p_value"] for test in family]), strict=True):
            test |= {"p_holm": p_value, "significant": p_value <= ALPHA}
        tests += family
    return tests


def _pairs(means: Mapping[str, float], reference: str | None) -> list[tuple[str, str]]:
    """Return pairs to test: (better row, other row), then (row, reference)."""
    ranked = sorted(means, key=lambda row: -means[row])
    pairs = [(ranked[0], ranked[1])] if len(ranked) > 1 else []
    if reference is not None and reference in means:
        others = (row for row in means if row != reference)
        pairs += [(row, reference) for row in others if {row, reference} != {*ranked[:2]}]
    return pairs
