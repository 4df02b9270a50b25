"""The charts of a report, drawn with altair from its results."""

from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from atommem.eval.output import file_stem
from atommem.eval.reporting.results import Results, label, scores_by_key

# Okabe and Ito's palette for colour-blind readers; shapes repeat the distinction.
_COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#8C564B"]
_PALETTE = alt.Scale(range=_COLORS)
Charts = dict[str, Any]  # charts of altair by title


def make_charts(results: Results) -> Charts:
    scores = main_scores(results)
    charts: Charts = {}
    if scores.empty:
        return charts
    for (column, name), own in scores.groupby(["column", "label"], sort=False):
        for cost in ("model calls", "tokens"):
            if len(own) > 1 and (own[cost] > 0).all():
                charts[f"{name} against {cost}: {column}"] = _scatter(own, cost, name)
    for (dataset, name), own in scores.groupby(["dataset", "label"], sort=False):
        if own["documents"].nunique() > 1:
            charts[f"{name} against documents: {dataset}"] = _curves(own, name)
    return {
        title: chart.properties(width=480, height=260).configure_legend(labelLimit=300)
        for title, chart in charts.items()
    }


def write_charts(charts: Charts, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for title, chart in charts.items():
        for form in ("png", "svg"):
            chart.save(folder / f"{file_stem(title)}.{form}", scale_factor=2)


def main_scores(results: Results) -> pd.DataFrame:
    """Return each group's main score in percent, with its costs."""
    scores = scores_by_key(results)
    lines = []
    for group in results["groups"]:
        score = scores.get((group["row"], group["column"], group["metric"]))
        if score is None or group["overflow"]:
            continue
        line = {name: group[name] for name in ("row", "column", "dataset", "documents")}
        line |= {name: 100 * score[name] for name in ("mean", "low", "high")}
        line["label"] = label(group["metric"])
        means = group["means"]
        line["model calls"] = means["steps"]
        line["tokens"] = means["tokens/prompt"] + means["tokens/completion"]
        lines.append(line)
    return pd.DataFrame(lines)


def _scatter(scores: pd.DataFrame, cost: str, name: str) -> alt.LayerChart:
    base = alt.Chart(scores[["row", cost, "mean", "low", "high"]]).encode(
        x=alt.X(cost, title=f"{cost} per task", scale=alt.Scale(type="log", padding=14)),
        color=alt.Color("row", scale=_PALETTE, sort=None, title=None),
    )
    y = alt.Y("mean", title=f"{name}, percent", scale=alt.Scale(domain=[0, 100]))
    marks = base.mark_point(size=80, filled=True)
    marks = marks.encode(y=y, shape=alt.Shape("row", sort=None, legend=None))
    return base.mark_rule().encode(y="low", y2="high") + marks


def _curves(scores: pd.DataFrame, name: str) -> alt.LayerChart:
    base = alt.Chart(scores[["row", "documents", "mean", "low", "high"]]).encode(
        x=alt.X("documents:O"), color=alt.Color("row", scale=_PALETTE, sort=None, title=None)
    )
    title = f"{name}, percent"
    bars = base.mark_rule().encode(y=alt.Y("low", title=title), y2="high")
    return bars + base.mark_line(point=True).encode(y=alt.Y("mean", title=title))
