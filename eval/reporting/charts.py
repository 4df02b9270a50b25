"""The charts of a report, with altair."""

from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from atommem.eval.output import file_stem
from atommem.eval.reporting.results import Results, label

Charts = dict[str, Any]  # charts of altair by title

# Okabe and Ito's palette for colour-blind readers; shapes repeat the distinction.
_COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#8C564B"]
_PALETTE = alt.Scale(range=_COLORS)


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
        title: chart.properties(background="transparent")
        .configure(font="system-ui, sans-serif")
        .configure_view(stroke=None)
        .configure_axis(**looks, gridColor="#80808040", labelLimit=300)
        .configure_header(**looks)
        .configure_legend(**looks, labelLimit=300)
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
    scores = pd.DataFrame(results["scores"], columns=[*key, *percent])
    if groups.empty:
        return groups
    found = groups.merge(scores, on=key)
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
    dots = base.mark_point(size=90, filled=True, opacity=1).encode(x=x)
    panels = (bars + dots).properties(width=420, height=alt.Step(24))
    if scores["column"].nunique() == 1:
        return panels
    return panels.facet(row=alt.Row("column", title=None, sort=None))


def _against(scores: pd.DataFrame, x: alt.X, name: str, joined: bool) -> alt.LayerChart:
    """Draw the scores of each row, with their intervals, as points or a line."""
    color = alt.Color("row", scale=_PALETTE, sort=None, title=None)
    base = alt.Chart(scores).encode(x=x, color=color)
    marks = base.mark_line(point=True) if joined else base.mark_point(size=80, filled=True)
    y = alt.Y("mean", title=f"{name}, percent", scale=alt.Scale(domain=[0, 100]))
    marks = marks.encode(y=y, shape=alt.Shape("row", sort=None, legend=None))
    drawn: alt.LayerChart = base.mark_rule().encode(y="low", y2="high") + marks
    return drawn.properties(width=420, height=260)
