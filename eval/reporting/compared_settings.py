"""Scores against the numbers that settings are made of: capacity, chunk size, entries retrieved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atommem.eval.reporting.results import Column
from atommem.eval.reporting.scores import main_label, main_score


@dataclass(frozen=True)
class SettingChart:
    """The main score against one parameter in one column.

    Attributes:
        parameter: Its name.
        column: Data set and documents.
        values: The places on the axis: numbers in order, then texts ("unlimited").
        lines: By name, the cell at each place; None where there is none.
        score: What the main score is called.
    """

    parameter: str
    column: Column
    values: tuple[str | float, ...]
    lines: dict[str, tuple[Mapping[str, Any] | None, ...]]
    score: str


def setting_charts(results: Mapping[str, Any]) -> list[SettingChart]:
    """One chart for each column and each parameter that has several values, at least two of them numbers.

    A line holds the method and all other parameters fixed.
    """
    charts = []
    columns = dict.fromkeys((cell["dataset"], cell["documents"]) for cell in results["cells"])
    for column in columns:
        cells = [cell for cell in results["cells"] if (cell["dataset"], cell["documents"]) == column]
        for parameter in dict.fromkeys(name for cell in cells for name in cell["parameters"]):
            members = [cell for cell in cells if parameter in cell["parameters"] and main_score(cell) is not None]
            values = _in_order([cell["parameters"][parameter] for cell in members])
            if sum(not isinstance(value, str) for value in values) < 2:
                continue
            lines: dict[str, dict[str | float, Mapping[str, Any]]] = {}
            varied = _varied(members, parameter)
            for cell in members:
                lines.setdefault(_name(cell, varied), {})[cell["parameters"][parameter]] = cell
            placed = {name: tuple(points.get(value) for value in values) for name, points in lines.items()}
            charts.append(SettingChart(parameter, column, values, placed, main_label(members)))
    return charts


def to_json(chart: SettingChart) -> dict[str, Any]:
    """As the page takes it: the main score with its interval at each place."""
    return {
        "parameter": chart.parameter,
        "dataset": chart.column[0],
        "documents": chart.column[1],
        "values": list(chart.values),
        "score": chart.score,
        "lines": [
            {"name": name, "scores": [None if cell is None else main_score(cell) for cell in cells]}
            for name, cells in chart.lines.items()
        ],
    }


def _in_order(values: Sequence[str | float]) -> tuple[str | float, ...]:
    distinct = dict.fromkeys(values)
    numbers = sorted(value for value in distinct if not isinstance(value, str))
    return (*numbers, *(value for value in distinct if isinstance(value, str)))


def _varied(cells: Sequence[Mapping[str, Any]], parameter: str) -> list[str]:
    """The other parameters that differ between cells, and ``method`` if that does."""
    names = dict.fromkeys(name for cell in cells for name in cell["parameters"] if name != parameter)
    varied = [name for name in names if len({cell["parameters"].get(name) for cell in cells}) > 1]
    return ["", *varied] if len({cell["method"] for cell in cells}) > 1 else varied


def _name(cell: Mapping[str, Any], varied: Sequence[str]) -> str:
    """What is fixed along a line, as far as other lines differ in it."""
    parts = []
    for name in varied:
        if not name:
            parts.append(str(cell["method"]))
        elif name in cell["parameters"]:
            value = cell["parameters"][name]
            parts.append(value if isinstance(value, str) else f"{name} {value:,g}")
    return ", ".join(parts) or str(cell["method"])
