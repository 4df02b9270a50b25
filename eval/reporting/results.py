"""``results.json``: a set of evaluations as numbers. Its fields are described in docs/evaluation.md."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from atommem.errors import ConfigError
from envs.records import EpisodeRecord, summarize
from envs.statistics import holm, seed_spread
from eval.reporting.comparison import METRICS, compare_records
from eval.reporting.evaluations import Evaluation, joined_records
from eval.reporting.inspection import Inspection

RESULTS = "results.json"
FORMAT = 1
ALPHA = 0.05

Column = tuple[str, int | None]


@dataclass
class Cell:
    """All evaluations of one row and column: one per seed."""

    row: str
    column: Column
    evaluations: list[Evaluation] = field(default_factory=list)
    inspection: Inspection | None = None

    @property
    def records(self) -> list[EpisodeRecord]:
        """Of all seeds, with tasks told apart by their data."""
        return joined_records(self.evaluations)


def make_cells(evaluations: Sequence[Evaluation]) -> list[Cell]:
    """Group evaluations by row and column, in the order in which rows come first.

    Raises:
        ConfigError: Two evaluations have row, column and seed in common, or there is none.
    """
    if not evaluations:
        raise ConfigError("there is no evaluation to report: give at least one folder of `atommem eval`.")
    cells: dict[tuple[str, Column], Cell] = {}
    seen: dict[tuple[str, Column, int], Path] = {}
    for item in evaluations:
        key = (item.row, item.column, item.seed)
        if key in seen:
            raise ConfigError(
                f"{seen[key]} and {item.folder} are both {item.row!r} on {column_name(item.column)} with seed "
                f"{item.seed}: give one of them another name."
            )
        seen[key] = item.folder
        cells.setdefault((item.row, item.column), Cell(item.row, item.column)).evaluations.append(item)
    return list(cells.values())


def make_results(
    cells: Sequence[Cell], *, title: str = "Evaluation", reference: str | None = None, base: Path | None = None
) -> dict[str, Any]:
    """The contents of ``results.json``.

    Args:
        cells: From `make_cells`; where `Cell.inspection` is set, its numbers are included.
        title: Of tables and report.
        reference: A row that all others of its column are tested against, besides best against runner-up.
        base: Folder that the evaluations' paths are given relative to.

    Raises:
        ConfigError: There is no such row.
    """
    if reference is not None and reference not in {cell.row for cell in cells}:
        rows = ", ".join(repr(row) for row in dict.fromkeys(cell.row for cell in cells))
        raise ConfigError(f"reference is {reference!r}: give one of the rows {rows}.")
    return {
        "format": FORMAT,
        "title": title,
        "alpha": ALPHA,
        "reference": reference,
        "evaluations": [_evaluation(item, base) for cell in cells for item in cell.evaluations],
        "cells": [_cell(cell) for cell in cells],
        "comparisons": _comparisons(cells, reference),
    }


def write_results(results: Mapping[str, Any], folder: Path) -> Path:
    """Write ``results.json``, whole or not at all."""
    path = folder / RESULTS
    draft = path.with_name(path.name + ".part")
    draft.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    os.replace(draft, path)
    return path


def column_name(column: Column) -> str:
    """A column as its heading."""
    name, documents = column
    return name if documents is None else f"{name}, {documents} documents"


def _evaluation(item: Evaluation, base: Path | None) -> dict[str, Any]:
    folder = item.folder.resolve()
    return {
        "folder": os.path.relpath(folder, base.resolve()) if base is not None else str(folder),
        "method": item.method,
        "setting": item.setting,
        "dataset": item.dataset,
        "documents": item.documents,
        "seed": item.seed,
        "tasks_sha256": item.tasks_digest,
        **{key: value for key, value in summarize(item.records).items() if key in ("episodes", "failed", "em", "f1")},
    }


def _cell(cell: Cell) -> dict[str, Any]:
    summary = summarize(cell.records)
    first = cell.evaluations[0]
    result: dict[str, Any] = {
        "row": cell.row,
        "method": first.method,
        "setting": first.setting,
        "dataset": first.dataset,
        "documents": first.documents,
        "seeds": [item.seed for item in cell.evaluations],
        **summary,
    }
    for metric in METRICS:
        scores = [summarize(item.records)[metric] for item in cell.evaluations]
        if result[metric] is not None:
            spread = seed_spread([score["mean"] for score in scores if score is not None])
            result[metric] = {**result[metric], "between_seeds": asdict(spread)}
    if cell.inspection is not None:
        found = cell.inspection
        result["funnel"] = asdict(found.funnel)
        result["retrieval_precision"] = found.retrieval_precision
        result["store_size_by_step"] = [total / count for total, count in zip(found.sizes, found.steps, strict=True)]
        result["episodes_by_step"] = found.steps
        result["traces_missing"] = found.missing
    return result


def _comparisons(cells: Sequence[Cell], reference: str | None) -> list[dict[str, Any]]:
    """Best against runner-up in each column, every row against the reference; p-values Holm-corrected per metric."""
    found: list[dict[str, Any]] = []
    columns: dict[Column, list[Cell]] = {}
    for cell in cells:
        columns.setdefault(cell.column, []).append(cell)
    for metric in METRICS:
        family: list[dict[str, Any]] = []
        for column, members in columns.items():
            records = {cell.row: cell.records for cell in members}
            for second, first in _pairs(members, metric, reference):
                comparison = compare_records(records[first], records[second], metric)
                family.append(
                    {
                        "dataset": column[0],
                        "documents": column[1],
                        "first": first,
                        "second": second,
                        **comparison.to_json(),
                    }
                )
        for item, p_value in zip(family, holm([item["p_value"] for item in family]), strict=True):
            item["p_holm"] = p_value
            item["significant"] = p_value <= ALPHA
        found += family
    return found


def _pairs(members: Sequence[Cell], metric: str, reference: str | None) -> list[tuple[str, str]]:
    """(second, first): the one with the higher mean and the one it is held against."""
    means = {}
    for cell in members:
        score = summarize(cell.records)[metric]
        if score is not None:
            means[cell.row] = score["mean"]
    ranked = sorted(means, key=lambda row: -means[row])
    pairs = [(ranked[0], ranked[1])] if len(ranked) > 1 else []
    if reference in means:
        known = {frozenset(pair) for pair in pairs}
        pairs += [(row, reference) for row in means if row != reference and frozenset((row, reference)) not in known]
    return pairs


def best_rows(results: Mapping[str, Any], metric: str) -> dict[Column, str]:
    """By column, the row whose number may be set bold: the best one, if a corrected test says so.

    That is the case where it beats the runner-up (`Cell` with the second-highest mean) significantly.
    """
    best: dict[Column, str] = {}
    for column in {(cell["dataset"], cell["documents"]) for cell in results["cells"]}:
        scored = [
            cell
            for cell in results["cells"]
            if (cell["dataset"], cell["documents"]) == column and cell[metric] is not None
        ]
        if len(scored) < 2:
            continue
        first, second = sorted(scored, key=lambda cell: -cell[metric]["mean"])[:2]
        for item in results["comparisons"]:
            if (
                item["metric"] == metric
                and (item["dataset"], item["documents"]) == column
                and {item["first"], item["second"]} == {first["row"], second["row"]}
                and item["significant"]
                and (item["wins"] > item["losses"]) == (item["second"] == first["row"])
            ):
                best[column] = first["row"]
    return best
