"""The summary of an evaluation as a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from atommem.episode_stats import action_names
from atommem.eval.reporting.scores import label, main_score, ordered

_PER_STEP_IF_ANY = (
    ("unknown handle / step", "wasted/unknown_handle"),
    ("rejected / step", "wasted/rejected"),
    ("disabled / step", "wasted/disabled"),
)
_PER_EPISODE = (
    ("model calls", "steps"),
    ("retrievals", "retrievals"),
    ("prompt tokens", "tokens/prompt"),
    ("completion tokens", "tokens/completion"),
    ("store size at the end", "store_size"),
    ("seconds", "seconds"),
)
_SHARES_OF_TEXT = (("episodes with a cut text", "truncated"), ("text shown / episode", "context_kept"))
"""Of a method that cuts what does not fit."""


def report_table(summary: Mapping[str, Any]) -> Table:
    """`EvalResult.summary` as a table with one column for all tasks and one for each source.

    Actions without effect and endings that never occurred are left out.
    """
    columns = {"all": summary, **summary.get("by_source", {})}
    table = Table(title="Evaluation", title_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    for section in (_scores, _episodes, _rates, _costs, _truncation, _endings):
        rows = list(section(columns))
        for heading, *cells in rows:
            table.add_row(heading, *cells)
        if rows:
            table.add_section()
    return table


def breakdown_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """`atommem.envs.scoring.breakdowns.breakdowns` as a table: a line for each value, a column for each score."""
    names = ordered(row["metric"] for row in rows)
    table = Table("by", "", "questions", *map(label, names), title="Breakdowns", title_justify="left")
    lines: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        lines.setdefault((row["by"], row["value"]), {})[row["metric"]] = row
    last = ""
    for (by, value), scores in lines.items():
        if last not in ("", by):
            table.add_section()
        cells = [_interval(scores.get(name)) for name in names]
        table.add_row("" if by == last else by, value, str(max(row["n"] for row in scores.values())), *cells)
        last = by
    return table


def _scores(columns: Mapping[str, Any]) -> Iterator[list[str]]:
    found = {name for summary in columns.values() for name in (summary["metric"], *summary["metrics"])}
    names = ordered(found)
    for place, name in enumerate(names):
        heading = label(name) if place else f"{label(name)} [95% interval]"
        yield [heading, *(_interval(summary["metrics"].get(name)) for summary in columns.values())]


def _episodes(columns: Mapping[str, Any]) -> Iterator[list[str]]:
    yield ["independent units / questions scored", *(_counts(main_score(summary)) for summary in columns.values())]
    yield ["episodes", *(str(summary["episodes"]) for summary in columns.values())]
    yield ["  of these failed (not scored)", *(str(summary["failed"]) for summary in columns.values())]
    if any(summary["overflow"] for summary in columns.values()):
        yield ["  with a prompt that did not fit (not scored)", *(str(item["overflow"]) for item in columns.values())]


def _rates(columns: Mapping[str, Any]) -> Iterator[list[str]]:
    means = [summary["means"] for summary in columns.values()]
    always = [(f"{name} / step", f"actions/{name}") for name in action_names(*means)]
    always.append(("malformed / step", "malformed"))
    for heading, key in (*always, *_PER_STEP_IF_ANY):
        values = [mean.get(key) for mean in means]
        if any(values) or (heading, key) in always:
            yield [heading, *(_number(value, 3) for value in values)]


def _costs(columns: Mapping[str, Any]) -> Iterator[list[str]]:
    for heading, key in _PER_EPISODE:
        yield [f"{heading} / episode", *(_number(summary["means"].get(key), 1) for summary in columns.values())]


def _truncation(columns: Mapping[str, Any]) -> Iterator[list[str]]:
    for heading, key in _SHARES_OF_TEXT:
        values = [summary["means"].get(key) for summary in columns.values()]
        if any(value is not None for value in values):
            yield [heading, *("-" if value is None else f"{value:.1%}" for value in values)]


def _endings(columns: Mapping[str, Any]) -> Iterator[list[str]]:
    keys = sorted({key for summary in columns.values() for key in summary["means"] if key.startswith("stop/")})
    for key in keys:
        values = [summary["means"].get(key) for summary in columns.values()]
        if any(values):
            heading = f"ended: {key.removeprefix('stop/').replace('_', ' ')}"
            yield [heading, *("-" if value is None else f"{value:.1%}" for value in values)]


def _interval(estimate: Mapping[str, float] | None) -> str:
    if estimate is None:
        return "no score"
    return f"{estimate['mean']:.3f} [{estimate['low']:.3f}, {estimate['high']:.3f}]"


def _counts(estimate: Mapping[str, float] | None) -> str:
    return "0 / 0" if estimate is None else f"{estimate['clusters']} / {estimate['n']}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
