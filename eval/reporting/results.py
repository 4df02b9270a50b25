"""``results.json``: a set of evaluations as numbers. Its fields are described in docs/evaluation.md."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from atommem.envs.scoring.breakdowns import breakdowns
from atommem.envs.scoring.paired import compare
from atommem.envs.scoring.records import EpisodeRecord, summarize
from atommem.envs.scoring.statistics import holm, seed_spread
from atommem.errors import ConfigError
from atommem.eval.reporting.evaluations import Evaluation
from atommem.eval.reporting.inspection import Inspection
from atommem.eval.reporting.scores import METRICS, episode_metrics, metrics_of

RESULTS = "results.json"
FORMAT = 3
ALPHA = 0.05

BOUNDS = ("no_memory", "oracle")
"""Methods that say how low and how high a score can be. They compete with nothing: not tested, and never bold."""

Column = tuple[str, int | None]


@dataclass
class Cell:
    """All evaluations of one row and column: one per seed, by seed.

    `inspection` is what the traces say (`atommem.eval.reporting.page.PageData` reads them).
    """

    row: str
    column: Column
    evaluations: list[Evaluation] = field(default_factory=list)
    inspection: Inspection | None = None

    @cached_property
    def records(self) -> list[EpisodeRecord]:
        """Of all seeds, with tasks told apart by their data."""
        return [record for evaluation in self.evaluations for record in evaluation.paired_records()]

    @property
    def planned(self) -> int | None:
        """Episodes that it has when all its evaluations are finished; None where that is not known."""
        known = [item.planned for item in self.evaluations if item.planned is not None]
        return sum(known) if len(known) == len(self.evaluations) else None

    @property
    def bound(self) -> bool:
        """Whether its method is one of `BOUNDS`, by whatever name its row goes."""
        names = (
            item.manifest.get("method", {}).get("name", item.method) for item in self.evaluations
        )
        return any(name in BOUNDS for name in names)

    @property
    def keeps_memory(self) -> bool:
        """Whether its method has a memory to lose answers in: it runs the loop, or did something to one."""
        loop = any("memory" in item.manifest for item in self.evaluations)
        return loop or (self.inspection is not None and self.inspection.operations > 0)


def make_cells(evaluations: Sequence[Evaluation]) -> list[Cell]:
    """Group evaluations by row and column, in the order in which rows come first.

    Raises:
        ConfigError: Two evaluations have row, column and seed in common, or there is none.
    """
    if not evaluations:
        raise ConfigError(
            "there is no evaluation to report: give at least one folder of `atommem eval`."
        )
    cells: dict[tuple[str, Column], Cell] = {}
    seen: dict[tuple[str, Column, int], Path] = {}
    for item in evaluations:
        key = (item.row, item.column, item.seed)
        if key in seen:
            raise ConfigError(
                f"{seen[key]} and {item.folder} are both {item.row!r} on {column_name(item.column)} with seed "
                f"{item.seed}: give one of them another name, NAME=FOLDER."
            )
        seen[key] = item.folder
        cells.setdefault((item.row, item.column), Cell(item.row, item.column)).evaluations.append(
            item
        )
    for cell in cells.values():
        cell.evaluations.sort(key=lambda item: item.seed)
    return list(cells.values())


def make_results(
    cells: Sequence[Cell],
    *,
    title: str = "Evaluation",
    reference: str | None = None,
    base: Path | None = None,
    efficiency: bool = False,
) -> dict[str, Any]:
    """The contents of ``results.json``.

    Args:
        cells: From `make_cells`; where `Cell.inspection` is set, its numbers are included.
        title: Of tables and report.
        reference: A row that all others of its column are tested against, besides best against runner-up. Bounds, and
            cells with prompts that did not fit, are in no test.
        base: Folder that the evaluations' paths are given relative to.
        efficiency: With wall-clock seconds: then no two runs give the same results.

    Raises:
        ConfigError: There is no such row.
    """
    if reference is not None and reference not in {cell.row for cell in cells}:
        rows = ", ".join(repr(row) for row in dict.fromkeys(cell.row for cell in cells))
        raise ConfigError(f"reference is {reference!r}: give one of the rows {rows}.")
    found = [_cell(cell, efficiency) for cell in cells]
    return {
        "format": FORMAT,
        "title": title,
        "alpha": ALPHA,
        "reference": reference,
        "efficiency": efficiency,
        "evaluations": [_evaluation(item, base) for cell in cells for item in cell.evaluations],
        "cells": found,
        "comparisons": _comparisons(cells, found, reference),
    }


def column_name(column: Column) -> str:
    """A column as its heading."""
    name, documents = column
    return name if documents is None else f"{name}, {documents} documents"


def column_of(item: Mapping[str, Any]) -> Column:
    """The column of an evaluation, a cell or a comparison of ``results.json``."""
    return item["dataset"], item["documents"]


def _evaluation(item: Evaluation, base: Path | None) -> dict[str, Any]:
    folder = item.folder.resolve()
    summary = summarize(item.records)
    return {
        "folder": os.path.relpath(folder, base.resolve()) if base is not None else str(folder),
        **item.labels,
        "seed": item.seed,
        "tasks_sha256": item.tasks_digest,
        "planned": item.planned,
        **{key: summary[key] for key in ("episodes", "failed", "overflow", "metric", "metrics")},
    }


def _cell(cell: Cell, efficiency: bool) -> dict[str, Any]:
    records = cell.records
    summary = summarize(records)
    if not efficiency:
        summary["means"].pop("seconds", None)
    result: dict[str, Any] = {
        "row": cell.row,
        **cell.evaluations[0].labels,
        "seeds": [item.seed for item in cell.evaluations],
        "planned": cell.planned,
        "bound": cell.bound,
        "provenance": _provenance([item.manifest for item in cell.evaluations]),
        **summary,
        "episode_metrics": episode_metrics(records),
        "breakdowns": breakdowns(records),
    }
    seeds = (
        [summarize(item.records) for item in cell.evaluations]
        if len(cell.evaluations) > 1
        else [summary]
    )
    for metric in metrics_of([result]):
        scores = [
            score for score in (item["metrics"].get(metric) for item in seeds) if score is not None
        ]
        result["metrics"][metric] |= {
            "between_seeds": asdict(seed_spread([item["mean"] for item in scores]))
        }
    if cell.inspection is not None:
        result["lost"] = cell.inspection.lost() if cell.keeps_memory else None
        result |= cell.inspection.to_json()
    return result


def _provenance(manifests: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What numbers were made with, by heading, from ``run.json``; different values of several seeds side by side."""
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
                text = _place(value) if isinstance(value, str) else f"{value:,}"
                found.setdefault(heading, {})[text] = None
    return {heading: " / ".join(values) for heading, values in found.items()}


def _place(name: str) -> str:
    """A name, or a folder by its last two parts (RUN/checkpoint-300): a page must not say whose machine it is of."""
    parts = re.sub(r"^/(home/[^/]+/|Users/[^/]+/|root/)?", "", name.rstrip("/")).split("/")
    return "/".join(parts[-2:])


def _comparisons(
    cells: Sequence[Cell], results: Sequence[Mapping[str, Any]], reference: str | None
) -> list[dict[str, Any]]:
    """Best against runner-up in each column, every row against the reference; p-values Holm-corrected per metric."""
    found: list[dict[str, Any]] = []
    for metric in (name for name in metrics_of(results) if name in METRICS):
        family: list[dict[str, Any]] = []
        for column in dict.fromkeys(cell.column for cell in cells):
            members = {
                cell.row: (cell.records, float(score["mean"]))
                for cell, result in zip(cells, results, strict=True)
                if cell.column == column
                and competes(result)
                and (score := result["metrics"].get(metric)) is not None
            }
            for second, first in _pairs(
                {row: mean for row, (_, mean) in members.items()}, reference
            ):
                names = {
                    "dataset": column[0],
                    "documents": column[1],
                    "first": first,
                    "second": second,
                }
                family.append(
                    names | compare(members[first][0], members[second][0], metric).to_json()
                )
        for item, p_value in zip(family, holm([item["p_value"] for item in family]), strict=True):
            item |= {"p_holm": p_value, "significant": p_value <= ALPHA}
        found += family
    return found


def _pairs(means: Mapping[str, float], reference: str | None) -> list[tuple[str, str]]:
    """(second, first): the one with the higher mean and the one it is held against."""
    ranked = sorted(means, key=lambda row: -means[row])
    pairs = [(ranked[0], ranked[1])] if len(ranked) > 1 else []
    if reference is not None and reference in means:
        pairs += [
            (row, reference)
            for row in means
            if row != reference and {row, reference} != {*ranked[:2]}
        ]
    return pairs


def competes(cell: Mapping[str, Any]) -> bool:
    """Whether a cell of ``results.json`` takes part in tests and ranking: no bound, and all of its prompts fit."""
    return not cell["bound"] and not cell["overflow"]


def best_rows(results: Mapping[str, Any], metric: str) -> dict[Column, str]:
    """By column, the row whose number may be set bold: the best one, if it beats the runner-up by a corrected test."""
    first: dict[Column, Mapping[str, Any]] = {}
    for item in results["comparisons"]:
        if item["metric"] == metric:
            # A column's first comparison is that of the best with the runner-up (`_pairs`).
            first.setdefault(column_of(item), item)
    won = (item for item in first.values() if item["significant"] and (item["difference"] or 0) > 0)
    return {column_of(item): item["second"] for item in won}
