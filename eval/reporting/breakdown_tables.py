"""Scores by type, level, hops, number of questions and position of the evidence, as tables of a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atommem.eval.reporting.results import column_name
from atommem.eval.reporting.scores import main_label
from atommem.eval.reporting.tables import Table, Value, columns_of

NOTE = (
    "Percent [95% interval]; n: questions of the first row that has any. Evidence: in which fifths of the text a "
    "question's first and last gold document lie. Not tested, hence nothing is bold."
)


def breakdown_tables(results: Mapping[str, Any]) -> list[Table]:
    """For each column of ``results.json`` and each attribute one table, of the main score.

    Rows are the report's, columns the attribute's values. Categories have tables of their own.
    """
    tables = []
    for column in columns_of(results):
        cells = [cell for cell in results["cells"] if (cell["dataset"], cell["documents"]) == column]
        found = {
            (cell["row"], row["by"], row["value"]): row
            for cell in cells
            for row in cell["breakdowns"]
            if row["metric"] == cell["metric"] and not cell["overflow"]
        }
        for by in dict.fromkeys(by for _, by, _ in found if by != "category"):
            values = list(dict.fromkeys(value for _, name, value in found if name == by))
            counts = {value: next(row["n"] for key, row in found.items() if key[1:] == (by, value)) for value in values}
            rows = tuple(
                (cell["row"], tuple(_percent(found.get((cell["row"], by, value))) for value in values))
                for cell in cells
                if any((cell["row"], by, value) in found for value in values)
            )
            title = f"{main_label(cells)} by {by}: {column_name(column)}"
            headings = tuple(("", f"{value} (n = {counts[value]})") for value in values)
            tables.append(Table("breakdowns", f"{by}, {column_name(column)}", title, NOTE, headings, rows))
    return tables


def _percent(row: Mapping[str, Any] | None) -> Value:
    if row is None:
        return Value()
    mean, low, high = (float(row[name]) for name in ("mean", "low", "high"))
    return Value(f"{100 * mean:.1f}", f"[{100 * low:.1f}, {100 * high:.1f}]", ends=(mean, low, high))
