"""The paper's tables as data (``configs/eval/paper_tables.yaml``), and ours beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean
from typing import Any

import yaml

from atommem.config import check_choice
from atommem.plugins import find_file

FILE = "paper_tables"


@cache
def published() -> Mapping[str, Any]:
    """The contents of the file."""
    found: Mapping[str, Any] = yaml.safe_load(
        find_file("suite", FILE, "eval").read_text(encoding="utf-8")
    )
    return found


def table_of(name: str) -> Mapping[str, Any]:
    """One of its tables.

    Raises:
        ConfigError: There is none of that name.
    """
    tables = published()["tables"]
    check_choice("paper", name, tuple(tables))
    found: Mapping[str, Any] = tables[name]
    return found


def beside(table: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    """The table's numbers with ours, for ``results.json``; rows and columns that we have nothing of are left out.

    A difference is ours minus the paper's; its interval is that of ours, as how sure the paper's number is, is not
    printed. The average is over the columns that we have, on both sides; its interval is the mean of the columns',
    which is too wide unless they vary together.

    Returns:
        ``title``, ``source``, ``columns``, and ``rows``, each with ``name``, ``row`` and ``values``: ``paper``,
        ``ours``, ``difference``, ``low``, ``high`` and ``n`` (questions of ours), or null. In percent, but for costs.
    """
    cells = {(cell["row"], _key(cell)): cell for cell in results["cells"]}
    costs: Sequence[str] = table.get("costs", ())
    columns: Sequence[str] = costs or table["columns"]
    rows = []
    for row in table["rows"]:
        own = [
            cell for (name, _), cell in cells.items() if name == row["row"] and not cell["overflow"]
        ]
        values: list[dict[str, float] | None] = []
        for column, paper in zip(columns, row["values"], strict=True):
            if costs:
                means = [
                    cell["means"][column] for cell in own if cell["means"].get(column) is not None
                ]
                values.append(_pair(paper, fmean(means)) if means else None)
            else:
                values.append(_score(paper, cells.get((row["row"], column)), table.get("metric")))
        if table.get("average"):
            known = [value for value in values if value is not None]
            averages = (
                {key: fmean(value[key] for value in known) for key in known[0] if key != "n"}
                if known
                else None
            )
            values.append(averages)
        if any(values):
            rows.append({"name": row["name"], "row": row["row"], "values": values})
    headings = [*columns, *(["average of these"] if table.get("average") else [])]
    return {
        "title": table["title"],
        "source": published()["source"],
        "columns": headings,
        "rows": rows,
    }


def _key(cell: Mapping[str, Any]) -> str:
    return (
        cell["dataset"] if cell["documents"] is None else f"{cell['dataset']}-{cell['documents']}"
    )


def _score(
    paper: float, cell: Mapping[str, Any] | None, metric: str | None
) -> dict[str, float] | None:
    if cell is None or cell["overflow"] or (metric or cell["metric"]) not in cell["metrics"]:
        return None
    score = cell["metrics"][metric or cell["metric"]]
    low, high = 100 * score["low"] - paper, 100 * score["high"] - paper
    return {**_pair(paper, 100 * score["mean"]), "low": low, "high": high, "n": score["n"]}


def _pair(paper: float, ours: float) -> dict[str, float]:
    return {"paper": paper, "ours": ours, "difference": ours - paper}
