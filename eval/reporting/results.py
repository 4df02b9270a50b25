"""``results.json``: evaluations as flat records of scores, breakdowns, means and tests."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from atommem.envs.scoring.paired import compare
from atommem.envs.scoring.records import EpisodeRecord, breakdowns, metric_names, summarize
from atommem.envs.scoring.statistics import clustered_estimate, holm, seed_spread
from atommem.errors import ConfigError
from atommem.eval.reporting.evaluations import Evaluation
from atommem.eval.reporting.inspection import Inspection
from atommem.text_safety import clean

RESULTS = "results.json"
FORMAT = 4
ALPHA = 0.05
BOUNDS = ("no_memory", "oracle")
"""Methods that bound the possible scores; they enter no test."""
METRICS = ("em", "f1", "sub_em", "gaia", "judge", "reward")
"""Scores of answers, which are tested."""
FACTS = ("fact_entered", "fact_kept", "fact_retrieved")
"""Supporting-fact recall (`atommem.envs.longdoc.recall`)."""
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

Group = list[Evaluation]
"""The evaluations of one row and column, one per seed."""


def label(metric: str) -> str:
    """Return a score's heading."""
    return LABELS.get(metric, metric)


def ordered(metrics: Iterable[str]) -> list[str]:
    """Sort scores: those of answers, others by name, fact recall."""
    found = set(metrics)
    others = sorted(found - {*METRICS, *FACTS})
    return [name for name in (*METRICS, *others, *FACTS) if name in found]


def group_evaluations(evaluations: Sequence[Evaluation]) -> dict[tuple[str, str], Group]:
    """Group evaluations by row and column, in order of appearance.

    Raises:
        ConfigError: There is no evaluation, or two have the same row, column and seed.
    """
    if not evaluations:
        raise ConfigError("There is no evaluation. Give at least one folder of `atommem eval`.")
    groups: dict[tuple[str, str], Group] = {}
    for item in evaluations:
        group = groups.setdefault((item.row, item.column), [])
        for other in group:
            if other.seed == item.seed:
                raise ConfigError(
                    f"{other.folder} and {item.folder} are both {item.row!r} on {item.column} "
                    f"with seed {item.seed}. Rename one: NAME=FOLDER."
                )
        group.append(item)
    for group in groups.values():
        group.sort(key=lambda item: item.seed)
    return groups


def make_results(
    evaluations: Sequence[Evaluation],
    inspections: Mapping[tuple[str, str], Inspection] | None = None,
    *,
    title: str = "Evaluation",
    reference: str | None = None,
    base: Path | None = None,
    efficiency: bool = False,
) -> dict[str, Any]:
    """Compute the contents of ``results.json``.

    Args:
        inspections: Findings in the traces, by row and column.
        reference: Row that every other row is tested against, beside best against runner-up.
        base: Folder that paths are relative to.
        efficiency: Include wall-clock seconds, which differ between runs.

    Raises:
        ConfigError: There is no such row, or evaluations cannot be told apart.
    """
    groups = group_evaluations(evaluations)
    rows = dict.fromkeys(row for row, _ in groups)
    if reference is not None and reference not in rows:
        raise ConfigError(f"reference={reference!r}: not a row. Choose of {', '.join(rows)}.")
    results: dict[str, Any] = {
        "format": FORMAT,
        "title": title,
        "alpha": ALPHA,
        "reference": reference,
        "efficiency": efficiency,
        "evaluations": [_evaluation(item, base) for group in groups.values() for item in group],
        "groups": [],
        "scores": [],
        "breakdowns": [],
    }
    for (row, column), group in groups.items():
        records = paired_records(group)
        summary = summarize(records)
        if not efficiency:
            summary["means"].pop("seconds", None)
        key = {"row": row, "column": column}
        planned = [item.planned for item in group]
        results["groups"].append(
            {
                **key,
                **{name: getattr(group[0], name) for name in ("method", "setting", "parameters")},
                "documents": group[0].documents,
                "dataset": group[0].dataset,
                "seeds": [item.seed for item in group],
                "planned": None if None in planned else sum(map(int, filter(None, planned))),
                "bound": any(_method(item) in BOUNDS for item in group),
                **{name: value for name, value in summary.items() if name != "metrics"},
                "episode_metrics": episode_metrics(records),
                "provenance": _provenance([item.manifest for item in group]),
                **_inspected(group, (inspections or {}).get((row, column))),
            }
        )
        by_seed = [summarize(item.records)["metrics"] for item in group]
        for metric in ordered(summary["metrics"]):
            means = [found[metric]["mean"] for found in by_seed if metric in found]
            spread = asdict(seed_spread(means))
            results["scores"].append(
                key | {"metric": metric, **summary["metrics"][metric], "between_seeds": spread}
            )
        results["breakdowns"] += [
            key | line | {"value": clean(line["value"])} for line in breakdowns(records)
        ]
    results["comparisons"] = _comparisons(groups, results, reference)
    return results


def paired_records(group: Group) -> list[EpisodeRecord]:
    """Return the records of all seeds; equal task ids mean equal tasks."""
    return [record for item in group for record in item.paired_records()]


def overflow_note(group: Mapping[str, Any]) -> str:
    """Return a warning about prompts that did not fit, or an empty text."""
    count, total = group["overflow"], group["episodes"]
    return f"{count:,} of {total:,} episodes overflow" if count else ""


def best_rows(results: Mapping[str, Any], metric: str) -> dict[str, str]:
    """Return by column the row that beats the runner-up in a corrected test."""
    first: dict[str, Mapping[str, Any]] = {}
    for test in results["comparisons"]:
        if test["metric"] == metric:  # a column's first test is best against runner-up
            first.setdefault(test["column"], test)
    won = (test for test in first.values() if test["significant"] and test["difference"] > 0)
    return {test["column"]: test["second"] for test in won}


def episode_metrics(records: Sequence[EpisodeRecord]) -> dict[str, dict[str, Any]]:
    """Estimate metrics of whole episodes in [0, 1] that are not scores (``truncated``)."""
    of_questions = {
        name for record in records for item in record.questions for name in item.metrics
    }
    names = {name for record in records for name in record.metrics}
    found = {}
    for name in sorted(names - (of_questions or {*metric_names(records)})):
        items = [record for record in records if name in record.metrics]
        values = [record.metrics[name] for record in items]
        if all(0 <= value <= 1 for value in values):
            units = [record.group or record.task_id for record in items]
            found[name] = asdict(clustered_estimate(values, units))
    return found


def _evaluation(item: Evaluation, base: Path | None) -> dict[str, Any]:
    folder = item.folder.resolve()
    return {
        "folder": os.path.relpath(folder, base.resolve()) if base is not None else str(folder),
        **item.labels,
        "seed": item.seed,
        "tasks_sha256": item.tasks_digest,
        "planned": item.planned,
        "episodes": len(item.records),
    }


def _method(item: Evaluation) -> str:
    return str(item.manifest.get("method", {}).get("name", item.method))


def _inspected(group: Group, inspection: Inspection | None) -> dict[str, Any]:
    if inspection is None:
        return {}
    memory = any("memory" in item.manifest for item in group) or inspection.operations > 0
    return {"lost": inspection.lost() if memory else None, **inspection.to_json()}


def _provenance(manifests: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Name checkpoint, embedder and settings; different values of seeds stand side by side."""
    found: dict[str, dict[str, None]] = {}
    for manifest in manifests:
        policy, memory, method = (manifest.get(name, {}) for name in ("policy", "memory", "method"))
        embedder, environment = manifest.get("embedder", {}), manifest.get("environment", {})
        named = embedder.get("embedder") in ("sentence_transformer", "http")
        by_document = environment.get("chunking") == "documents"
        for heading, value in {
            "checkpoint": policy.get("path") or policy.get("model"),
            "commit": policy.get("commit"),
            "temperature": manifest.get("sampling", {}).get("temperature"),
            "max tokens": manifest.get("sampling", {}).get("max_tokens"),
            "templates": memory.get("templates"),
            "embedder": embedder.get("embedder_model" if named else "embedder"),
            "chunk": "a document" if by_document else environment.get("chunk_tokens"),
            "k": memory.get("retrieve_k") or method.get("retrieve_k"),
            "capacity": memory.get("capacity"),
        }.items():
            if value is not None:
                text = _short_path(value) if isinstance(value, str) else f"{value:,}"
                found.setdefault(heading, {})[text] = None
    return {heading: " / ".join(values) for heading, values in found.items()}


def _short_path(name: str) -> str:
    """Keep the last two parts of a folder, so that reports do not name their machine."""
    parts = re.sub(r"^/(home/[^/]+/|Users/[^/]+/|root/)?", "", name.rstrip("/")).split("/")
    return "/".join(parts[-2:])


def _comparisons(
    groups: Mapping[tuple[str, str], Group], results: Mapping[str, Any], reference: str | None
) -> list[dict[str, Any]]:
    """Test best against runner-up, and rows against the reference; Holm-corrected per metric."""
    tested = {
        (group["row"], group["column"])
        for group in results["groups"]
        if not group["bound"] and not group["overflow"]
    }
    scores = [score for score in results["scores"] if (score["row"], score["column"]) in tested]
    columns = dict.fromkeys(column for _, column in groups)
    tests: list[dict[str, Any]] = []
    for metric in METRICS:
        means: dict[str, dict[str, float]] = {column: {} for column in columns}
        for score in scores:
            if score["metric"] == metric:
                means[score["column"]][score["row"]] = score["mean"]
        family = []
        for column, by_row in means.items():
            records = {row: paired_records(groups[row, column]) for row in by_row}
            for second, first in _pairs(by_row, reference):
                found = compare(records[first], records[second], metric).to_json()
                family.append({"column": column, "first": first, "second": second, **found})
        for test, p_value in zip(family, holm([test["p_value"] for test in family]), strict=True):
            test |= {"p_holm": p_value, "significant": p_value <= ALPHA}
        tests += family
    return tests


def _pairs(means: Mapping[str, float], reference: str | None) -> list[tuple[str, str]]:
    """Return pairs to test: (better row, other row), then (row, reference)."""
    ranked = sorted(means, key=lambda row: -means[row])
    pairs = [(ranked[0], ranked[1])] if len(ranked) > 1 else []
    if reference is not None and reference in means:
        pairs += [
            (row, reference)
            for row in means
            if row != reference and {row, reference} != {*ranked[:2]}
        ]
    return pairs
