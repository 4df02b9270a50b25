"""What comes of a suite's run: its report, its main table in the terminal, and the exit status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from atommem.eval.budget import Budget
from atommem.eval.console_report import (
    EXIT_BUDGET_SPENT,
    EXIT_IMPOSSIBLE,
    EXIT_TOO_MANY_FAILED,
    complain,
    wide_console,
)
from atommem.eval.reporting.evaluations import read_evaluation
from atommem.eval.reporting.report_cli import write_report
from atommem.eval.reporting.results import column_name, column_of
from atommem.eval.reporting.scores import main_label
from atommem.eval.reporting.tables import columns_of, rows_of, score_of
from atommem.eval.suites.cells import Cell
from atommem.eval.suites.suite import Suite

REPORT = "report"
"""The report's folder in that of the suite."""


def report(suite: Suite, cells: Sequence[Cell], out: Path, training: Path | None = None) -> None:
    """Write the report of the episodes that there are to ``out/report``, and print its main table.

    Args:
        suite: Names title, reference and the order of the rows.
        cells: What was run; those without any episode are left out.
        out: The suite's folder.
        training: A training run, for the action rates over training.

    Raises:
        AtomMemError: A folder cannot be read.
    """
    console = wide_console(200)
    found = [cell for cell in cells if cell.done]
    if not found:
        console.print("No episode has ended: there is nothing to report.")
        return
    evaluations = [
        read_evaluation(
            cell.folder,
            cell.row.method,
            cell.column.name,
            setting=cell.row.label,
            documents=cell.column.documents,
            seed=cell.seed,
            parameters=cell.row.parameters,
        )
        for cell in sorted(found, key=lambda cell: suite.rows.index(cell.row))
    ]
    title = suite.title
    if missing := len(cells) - len(found):
        title += f" (incomplete: {missing} of {len(cells)} evaluations have no episode)"
    rows = {item.row for item in evaluations}
    results = write_report(
        evaluations,
        out / REPORT,
        title=title,
        reference=suite.reference if suite.reference in rows else None,
        training=training,
        efficiency=suite.efficiency,
        deltas=suite.deltas,
        paper=suite.paper,
        progress=True,
    )
    console.print(main_table(results))
    console.print(
        f"{out / REPORT / 'report.html'}; tables, plots and results.json lie beside it",
        markup=False,
    )


def main_table(results: Mapping[str, Any]) -> Table:
    """The main score of all rows and columns, bold as in the report."""
    name = main_label(results["cells"])
    table = Table(
        title=f"{results['title']}: {name} in percent [95% interval]", title_justify="left"
    )
    table.add_column("")
    cells = {(cell["row"], column_of(cell)): cell for cell in results["cells"]}
    for column in columns_of(results):
        table.add_column(column_name(column), justify="right")
    for row in rows_of(results):
        own = (cells.get((row, column)) for column in columns_of(results))
        table.add_row(
            Text(row), *(Text("-") if cell is None else _score(results, cell) for cell in own)
        )
    return table


def _score(results: Mapping[str, Any], cell: Mapping[str, Any]) -> Text:
    value = score_of(results, cell, cell["metric"])
    text = Text(value.text, "bold" if value.bold else "")
    for more, style in ((value.interval, "dim"), (value.warning, "bold red")):
        text.append(f" {more}" if more else "", style)
    return text


def exit_status(cells: Sequence[Cell], budget: Budget) -> int:
    """Say on standard error what went wrong, and return the exit status.

    Returns:
        0; 2: a cell could not run; 3: too many episodes of a cell failed; 4: the budget was spent.
    """
    impossible = [cell for cell in cells if cell.state == "impossible"]
    failing = [
        cell for cell in cells if cell.failed_fraction > cell.evaluation.config.max_failed_fraction
    ]
    stopped = [cell for cell in cells if cell.state == "stopped"]
    for cell in impossible:
        complain(f"{cell.name} could not run: {cell.error}")
    for cell in failing:
        complain(
            f"{cell.name}: {cell.failed} of {cell.done} episodes failed, more than --max_failed_fraction "
            f"{cell.evaluation.config.max_failed_fraction:g}. Scores cover the others only; the same command runs them again."
        )
    if stopped:
        left = sum(cell.left for cell in stopped)
        complain(
            f"the budget is spent: {budget}. {left} episodes of {len(stopped)} cells have not run; the report covers "
            "those that have. The same command with a larger --budget_tokens or --budget_money continues."
        )
    if impossible:
        return EXIT_IMPOSSIBLE
    if stopped:
        return EXIT_BUDGET_SPENT
    return EXIT_TOO_MANY_FAILED if failing else 0
