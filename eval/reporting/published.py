"""The paper's tables (``configs/eval/paper_tables.yaml``), and our numbers beside them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from statistics import fmean
from typing import Any

import yaml

from atommem.config import check_choice
from atommem.plugins import find_file


@cache
def load_published() -> Mapping[str, Any]:
    """Load the file."""
    path = find_file("suite", "paper_tables", "eval")
    published: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return published


def load_table(name: str) -> Mapping[str, Any]:
    """Load one table; raises ConfigError if there is none of that name."""
    tables = load_published()["tables"]
    check_choice("paper", name, tuple(tables))
    table: Mapping[str, Any] = tables[name]
    return table


def set_beside(table: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    """Pair the table's numbers with ours; rows and columns without ours are left out.

    A difference is ours minus the paper's, with the interval of ours. An average is over the
    columns that we have, with the mean of their intervals.

    Returns:
        ``title``, ``source``, ``columns``, and ``rows`` with ``name``, ``row`` and ``values``:
        ``paper``, ``ours``, ``difference``, ``low``, ``high``, ``n``, or None. In percent, but for
        costs.
    """
    groups = {(group["row"], _key(group)): group for group in results["groups"]}
    scores = {(s["row"], s["column"], s["metric"]): s for s in results["scores"]}
    costs = table.get("costs")
    columns = costs or table["columns"]
    rows = []
    for row in table["rows"]:
        own = [group for (name, _), group in groups.items() if name == row["row"]]
        values: list[dict[str, float] | None] = []
        for column, paper in zip(columns, row["values"], strict=True):
            if costs:
                means = [
                    group["means"][column]
                    for group in own
                    if not group["overflow"] and group["means"].get(column) is not None
                ]
                values.append(_pair(paper, fmean(means)) if means else None)
                continue
            group = groups.get((row["row"], column))
            score = None
            if group is not None and not group["overflow"]:
                metric = table.get("metric") or group["metric"]
                score = scores.get((group["row"], group["column"], metric))
            values.append(_score_pair(paper, score))
        if table.get("average"):
            known = [value for value in values if value is not None]
            keys = [key for key in (known[0] if known else ()) if key != "n"]
            average = {key: fmean(value[key] for value in known) for key in keys}
            values.append(average or None)
        if any(values):
            rows.append({"name": row["name"], "row": row["row"], "values": values})
    headings = [*columns, *(["average of these"] if table.get("average") else [])]
    source = load_published()["source"]
    return {"title": table["title"], "source": source, "columns": headings, "rows": rows}


def _key(group: Mapping[str, Any]) -> str:
    name, documents = group["dataset"], group["documents"]
    return name if documents is None else f"{name}-{documents}"


def _score_pair(paper: float, score: Mapping[str, Any] | None) -> dict[str, float] | None:
    if score is None:
        return None
    low, high = 100 * score["low"] - paper, 100 * score["high"] - paper
    return {**_pair(paper, 100 * score["mean"]), "low": low, "high": high, "n": score["n"]}


def _pair(paper: float, ours: float) -> dict[str, float]:
    return {"paper": paper, "ours": ours, "difference": ours - paper}
