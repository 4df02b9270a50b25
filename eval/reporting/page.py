"""The page of a report (``page.html``): what won, charts, what changed, then every table."""

import io
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import altair as alt
import jinja2
import pandas as pd
import vl_convert
from rich.console import Console

from atommem.envs.scoring.records import compare
from atommem.eval.reporting.comparison import changed_tasks
from atommem.eval.reporting.results import Evaluation, Results, first_tests, label, scores_by_key
from atommem.eval.reporting.tables import Table, format_estimate
from atommem.eval.runner import file_stem
from atommem.trace import Trace, read_trace
from atommem.trace_view import render_trace

SHOWN = 3
"""Episodes of each kind that the page has with their steps."""
Changed = tuple[str, dict[str, Trace]]  # a task in a line, and an episode of each side


def render_page(
    title: str,
    results: Results,
    tables: Sequence[Table],
    charts: Mapping[str, Any],
    evaluations: Sequence[Evaluation] = (),
) -> str:
    """Render one static page; it runs no script and loads nothing."""
    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    pages = jinja2.Environment(loader=folder, autoescape=True, trim_blocks=True)
    pages.filters["as_text"] = _as_text
    return pages.get_template("page.html").render(
        title=title,
        headlines=headlines(results),
        drawings={name: vl_convert.vegalite_to_svg(c.to_dict()) for name, c in charts.items()},
        changes=find_changes(results, evaluations),
        sections=[list(items) for _, items in groupby(tables, key=lambda table: table.section)],
    )


def headlines(results: Results) -> list[str]:
    """Return a sentence for each data set: what is best, and whether that could be chance."""
    scores, tests = scores_by_key(results), first_tests(results)
    lines = []
    for column in dict.fromkeys(group["column"] for group in results["groups"]):
        groups = [group for group in results["groups"] if group["column"] == column]
        metric = groups[0]["metric"]
        name, test = f"{label(metric)} on {column}", tests.get((column, metric))
        rows = (group["row"] for group in groups)
        found = {row: scores[key] for row in rows if (key := (row, column, metric)) in scores}
        if test is None:
            lines += [f"{row}: {name} {format_estimate(found[row])}." for row in list(found)[:1]]
            continue
        sides = test["second"], test["first"]
        best, other = (f"{row} ({100 * found[row]['mean']:.1f})" for row in sides)
        gap = f"{100 * test['difference']:.1f} points"
        if test["units"]:
            gap += f" [{100 * test['low']:+.1f}, {100 * test['high']:+.1f}]"
        gap += f", p = {test['p_holm']:.2g}"
        lines.append(
            f"{best} beats {other} in {name} by {gap}."
            if test["significant"]
            else f"{best} and {other} may be equal in {name}: {gap}, {test['units']} units."
        )
    return lines


def find_changes(results: Results, evaluations: Sequence[Evaluation]) -> dict[str, list[Changed]]:
    """Return by heading the tasks in which the first pair of a data set differs that does at all.

    The episodes are the first of each side.
    """
    rows = {(item.row, item.column): item for item in reversed(evaluations)}
    found: dict[str, list[Changed]] = {}
    done: set[str] = set()
    for test in results["comparisons"]:
        column = test["column"]
        sides = [rows[key] for side in ("first", "second") if (key := (test[side], column)) in rows]
        if column in done or len(sides) < 2 or sides[0].tasks_digest != sides[1].tasks_digest:
            continue
        changes = changed_tasks(sides, compare(sides[0].records, sides[1].records, test["metric"]))
        done |= {column} if changes else set()
        for heading, better in (("worse", False), ("better", True)):
            if changed := [row for row in changes if (row["change"] > 0) == better]:
                where = f"{test['second']} is {heading} than {test['first']} on {column}"
                shown = [_changed(row, [side.row for side in sides]) for row in changed[:SHOWN]]
                found[f"Where {where} (tasks: {len(shown)} of {len(changed)})"] = shown
    return found


def _changed(row: Mapping[str, Any], names: Sequence[str]) -> Changed:
    asked = "; ".join(f"{text} ({' or '.join(golds)})" for text, golds in row["questions"].items())
    said = [
        f"{name}: {'; '.join(answer or 'no answer' for answer in answers[0])}"
        for name, answers in zip(names, row["answers"], strict=True)
        if answers
    ]
    sides = zip(names, row["traces"], strict=True)
    traces = {name: read_trace(paths[0]) for name, paths in sides if paths}
    return f"{asked or row['task_id']} - {', '.join(said)}", traces


def _as_text(trace: Trace) -> str:
    file = io.StringIO()
    Console(file=file, width=80, no_color=True, highlight=False).print(render_trace(trace))
    return file.getvalue()


Charts = dict[str, Any]  # charts of altair by title

# Okabe and Ito's palette for colour-blind readers; shapes repeat the distinction.
_COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#8C564B"]


def make_charts(results: Results) -> Charts:
    scores = main_scores(results)
    charts: Charts = {}
    if scores.empty:
        return charts
    for name, own in scores.groupby("label", sort=False):
        charts[f"{name}, percent, with 95% intervals"] = _dots(own)
    for (column, name), own in scores.groupby(["column", "label"], sort=False):
        for cost in ("model calls", "tokens"):
            if own[cost].min() > 0 and own[cost].max() > 1.1 * own[cost].min():
                x = alt.X(cost, title=f"{cost} per task", scale=alt.Scale(type="log", padding=14))
                charts[f"{name} against {cost}: {column}"] = _against(own, x, name, joined=False)
    for (dataset, name), own in scores.groupby(["dataset", "label"], sort=False):
        if own["documents"].nunique() > 1:
            x = alt.X("documents:O")
            charts[f"{name} against documents: {dataset}"] = _against(own, x, name, joined=True)
    gray = "#808080"  # on white and on black
    looks = {"labelColor": gray, "titleColor": gray, "labelFontSize": 13, "titleFontSize": 13}
    return {
        title: chart.configure(background="transparent", font="system-ui, sans-serif")
        .configure_point(filled=True, opacity=1)
        .configure_view(stroke=None)
        .configure_axis(**looks, gridColor="#80808040", labelLimit=300, labelSeparation=6)
        .configure_header(**looks, labelOrient="top", labelAnchor="start")
        .configure_legend(**looks, labelLimit=300, orient="top", columns=1)
        for title, chart in charts.items()
    }


def write_charts(charts: Charts, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for title, chart in charts.items():
        for form in ("png", "svg"):
            chart.save(folder / f"{file_stem(title)}.{form}", scale_factor=2)


def main_scores(results: Results) -> pd.DataFrame:
    """Return each group's main score in percent, with its costs."""
    key, percent = ["row", "column", "metric"], ["mean", "low", "high"]
    groups = pd.json_normalize([group for group in results["groups"] if not group["overflow"]])
    if groups.empty:
        return groups
    found = groups.merge(pd.DataFrame(results["scores"], columns=[*key, *percent]), on=key)
    found[percent] *= 100
    found["label"] = found["metric"].map(label)
    found["model calls"] = found["means.steps"]
    found["tokens"] = found["means.tokens/prompt"] + found["means.tokens/completion"]
    return found[["dataset", "documents", *key, *percent, "label", "model calls", "tokens"]]


def _dots(scores: pd.DataFrame) -> alt.LayerChart | alt.FacetChart:
    """Draw a dot with its interval for each row; a panel for each data set."""
    base = alt.Chart(scores[["row", "column", "mean", "low", "high"]])
    base = base.encode(y=alt.Y("row", sort=None, title=None), color=alt.value(_COLORS[0]))
    x = alt.X("mean", title=None, scale=alt.Scale(domain=[0, 100]))
    bars = base.mark_rule(size=2).encode(x=alt.X("low", title=None), x2="high")
    dots = base.mark_point(size=90).encode(x=x)
    panels = (bars + dots).properties(width=240, height=alt.Step(24))
    if scores["column"].nunique() == 1:
        return panels
    return panels.facet(row=alt.Row("column", title=None, sort=None))


def _against(scores: pd.DataFrame, x: alt.X, name: str, joined: bool) -> alt.LayerChart:
    """Draw the scores of each row, with their intervals, as points or a line."""
    rows = [*dict.fromkeys(scores["row"])]  # one legend of colors and shapes needs one domain
    color = alt.Color("row", scale=alt.Scale(domain=rows, range=_COLORS), title=None)
    base = alt.Chart(scores).encode(x=x, color=color)
    marks = base.mark_line(point=True) if joined else base.mark_point(size=80)
    y = alt.Y("mean", title=f"{name}, percent", scale=alt.Scale(domain=[0, 100]))
    marks = marks.encode(y=y, shape=alt.Shape("row", scale=alt.Scale(domain=rows), title=None))
    return (base.mark_rule().encode(y="low", y2="high") + marks).properties(width=300, height=240)
