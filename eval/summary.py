"""The summary of an evaluation in the terminal, and exit statuses."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from atommem.episode import action_names
from atommem.eval.reporting.results import label, ordered

EXIT_REFUSED = 2
EXIT_TOO_MANY_FAILED = 3
EXIT_BUDGET_SPENT = 4
EXIT_INTERRUPTED = 130
_MEANS = (
    ("malformed / step", "malformed", ".3f"),
    ("unknown handle / step", "wasted/unknown_handle", ".3f"),
    ("rejected / step", "wasted/rejected", ".3f"),
    ("disabled / step", "wasted/disabled", ".3f"),
    ("seconds / episode", "seconds", ",.1f"),
    ("prompt tokens / episode", "tokens/prompt", ",.1f"),
    ("output tokens / episode", "tokens/completion", ",.1f"),
    ("model calls / episode", "steps", ",.1f"),
    ("retrievals / episode", "retrievals", ",.1f"),
    ("entries at the end / episode", "store_size", ",.1f"),
    ("episodes with a truncated text", "truncated", ".1%"),
    ("text shown / episode", "context_kept", ".1%"),
)
"""Heading, key of ``means``, format; means that are 0 everywhere are left out."""


def print_error(text: str) -> None:
    """Print a failure to standard error."""
    print(f"atommem eval: {text}", file=sys.stderr)


def print_interrupted(out: str | Path) -> int:
    """Print how to continue; returns the exit status."""
    print(
        f"\nInterrupted. Every finished episode is in {out}; the same command continues there.",
        file=sys.stderr,
    )
    return EXIT_INTERRUPTED


def make_console() -> Console:
    """Make a console that does not wrap log files at 80 columns."""
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 160
    return console


def summary_table(summary: Mapping[str, Any]) -> Table:
    """Show `EvalResult.summary`: a column for all tasks, and one for each of several sources."""
    columns = {"all": summary, **summary.get("by_source", {})}
    items = list(columns.values())
    table = Table("", title="Evaluation", title_justify="left", box=SIMPLE_HEAD)
    for name in columns:
        table.add_column(name, justify="right")
    names = ordered(name for item in items for name in (item["metric"], *item["metrics"]))
    for place, name in enumerate(names):
        heading = label(name) + ("" if place else " [95% interval]")
        table.add_row(heading, *(_format_score(item, name) for item in items))
    table.add_row("independent units / questions", *map(_format_counts, items))
    table.add_row("episodes", *(str(item["episodes"]) for item in items))
    table.add_row("  of these failed (not scored)", *(str(item["failed"]) for item in items))
    if summary["overflow"]:
        counts = (str(item["overflow"]) for item in items)
        table.add_row("  prompt did not fit (not scored)", *counts)
    table.add_section()
    actions = action_names(*(item["means"] for item in items))
    means = [(f"{name} / step", f"actions/{name}", ".3f") for name in actions] + list(_MEANS)
    for key in sorted({key for item in items for key in item["means"] if key.startswith("stop/")}):
        means.append((f"ended: {key.removeprefix('stop/').replace('_', ' ')}", key, ".1%"))
    for heading, key, form in means:
        values = [item["means"].get(key) for item in items]
        if any(values) or key.startswith("actions/"):
            texts = ("-" if value is None else format(value, form) for value in values)
            table.add_row(heading, *texts)
    return table


def breakdown_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Show `atommem.envs.scoring.records.breakdowns`: a line per value, a column per score."""
    names = ordered(row["metric"] for row in rows)
    table = Table("by", "n", *map(label, names), title="Breakdowns", box=SIMPLE_HEAD)
    lines: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        lines.setdefault((row["by"], row["value"]), {})[row["metric"]] = row
    last = ""
    for (by, value), scores in lines.items():
        if last != by:
            table.add_row(by)
        cells = [_format_score({"metrics": scores}, name) for name in names]
        table.add_row(f"  {value}", str(max(row["n"] for row in scores.values())), *cells)
        last = by
    return table


def _format_score(item: Mapping[str, Any], metric: str) -> str:
    score = item["metrics"].get(metric)
    if score is None:
        return "no score"
    if item.get("overflow"):
        return f"no score, {score['mean']:.3f} in those that fit"
    return "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**score)


def _format_counts(item: Mapping[str, Any]) -> str:
    score = None if item["overflow"] else item["metrics"].get(item["metric"])
    return "0 / 0" if score is None else f"{score['clusters']} / {score['n']}"
