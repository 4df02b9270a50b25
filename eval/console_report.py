"""The summary of an evaluation as a table for the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from atommem.episode_stats import action_names
from atommem.eval.reporting.scores import label, main_score, ordered
from atommem.eval.reporting.tables import COSTS, RATES

EXIT_IMPOSSIBLE = 2
EXIT_TOO_MANY_FAILED = 3
EXIT_BUDGET_SPENT = 4
EXIT_INTERRUPTED = 130
"""How an evaluation may end, or a suite of them, beside 0."""
_SHARES_OF_TEXT = (
    ("episodes with a cut text", "truncated"),
    ("text shown / episode", "context_kept"),
)
"""Of a method that cuts what does not fit."""


def wide_console(width: int = 160) -> Console:
    """For reports; so wide where it is no terminal, as a log file need not wrap at 80 columns."""
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = width
    return console


def complain(text: str) -> None:
    """Say on standard error what went wrong."""
    print(f"atommem eval: {text}", file=sys.stderr)


def interrupted(out: str | Path) -> int:
    """Say how what was interrupted goes on; the exit status."""
    print(
        f"\nInterrupted. Every episode that ended is in {out}; the same command continues from there.",
        file=sys.stderr,
    )
    return EXIT_INTERRUPTED


def report_tables(summary: Mapping[str, Any], console: Console) -> Iterator[Table]:
    """`EvalResult.summary` with one column for all tasks and one for each source: as many to a table as have room."""
    rest = list({"all": summary, **summary.get("by_source", {})}.items())
    unlimited = console.options.update(max_width=1000)
    while rest:
        count = len(rest)
        table = report_table(dict(rest))
        while count > 1 and console.measure(table, options=unlimited).maximum > console.width:
            count -= 1
            table = report_table(dict(rest[:count]))
        yield table
        rest = rest[count:]


def report_table(columns: Mapping[str, Mapping[str, Any]]) -> Table:
    """Summaries, by their headings, beside each other.

    Actions without effect and endings that never occurred are left out.
    """
    items = list(columns.values())
    table = Table(title="Evaluation", title_justify="left", box=SIMPLE_HEAD)
    table.add_column(no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)

    def add(heading: str, text: Callable[[Mapping[str, Any]], str]) -> None:
        table.add_row(heading, *map(text, items))

    def add_means(heading: str, key: str, form: str) -> None:
        values = [item["means"].get(key) for item in items]
        table.add_row(heading, *("-" if value is None else format(value, form) for value in values))

    def occurs(key: str) -> bool:
        return any(item["means"].get(key) for item in items)

    for place, name in enumerate(
        ordered(name for item in items for name in (item["metric"], *item["metrics"]))
    ):
        add(label(name) + ("" if place else " [95% interval]"), partial(_interval, metric=name))
    table.add_section()
    add("independent units / questions", _counts)
    add("episodes", lambda item: str(item["episodes"]))
    add("  of these failed (not scored)", lambda item: str(item["failed"]))
    if any(item["overflow"] for item in items):
        add("  prompt did not fit (not scored)", lambda item: str(item["overflow"]))
    table.add_section()
    for name in action_names(*(item["means"] for item in items)):
        add_means(f"{name} / step", f"actions/{name}", ",.3f")
    for name, key in RATES:
        if key == "malformed" or occurs(key):
            add_means(f"{name} / step", key, ",.3f")
    table.add_section()
    for name, key, _ in COSTS:
        add_means(f"{name} / episode", key, ",.1f")
    table.add_section()
    for heading, key in _SHARES_OF_TEXT:
        if any(key in item["means"] for item in items):
            add_means(heading, key, ".1%")
    table.add_section()
    for key in sorted({key for item in items for key in item["means"] if key.startswith("stop/")}):
        if occurs(key):
            add_means(f"ended: {key.removeprefix('stop/').replace('_', ' ')}", key, ".1%")
    return table


def breakdown_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """`atommem.envs.scoring.breakdowns.breakdowns` as a table: a line for each value, a column for each score."""
    names = ordered(row["metric"] for row in rows)
    table = Table(
        "by",
        "n",
        *map(label, names),
        title="Breakdowns (n questions)",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    lines: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        lines.setdefault((row["by"], row["value"]), {})[row["metric"]] = row
    last = ""
    for (by, value), scores in lines.items():
        if last != by:
            table.add_row(by)
        cells = [_interval({"metrics": scores}, name) for name in names]
        table.add_row(f"  {value}", str(max(row["n"] for row in scores.values())), *cells)
        last = by
    return table


def _interval(item: Mapping[str, Any], metric: str) -> str:
    estimate = item["metrics"].get(metric)
    if estimate is None:
        return "no score"
    if item.get("overflow"):
        return f"no score, {estimate['mean']:.3f} in those that fit"
    return "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**estimate)


def _counts(item: Mapping[str, Any]) -> str:
    score = main_score(item)
    return "0 / 0" if score is None else f"{score['clusters']} / {score['n']}"
