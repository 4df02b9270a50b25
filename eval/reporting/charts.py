"""The charts of a report, drawn with altair from its results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from atommem.eval.output import file_stem
from atommem.eval.reporting.results import Results, label

# Okabe and Ito's palette for colour-blind readers; shapes repeat the distinction.
_COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#8C564B"]
_PALETTE = alt.Scale(range=_COLORS)
Charts = dict[str, Any]
"""Charts of altair by title."""


def make_charts(results: Results) -> Charts:
    """Draw every chart for which there is data."""
    alt.data_transformers.disable_max_rows()
    scores = main_scores(results)
    charts: Charts = {}
    if scores.empty:
        return charts
    for column, own in scores.groupby("column", sort=False):
        name = own["label"].iloc[0]
        for cost in ("model calls", "tokens"):
            if len(own) > 1 and (own[cost] > 0).all():
                charts[f"{name} against {cost}: {column}"] = _scatter(own, cost, name)
    for dataset, own in scores.groupby("dataset", sort=False):
        name = own["label"].iloc[0]
        for parameter, values in setting_lines(own).items():
            charts[f"{name} against {parameter}: {dataset}"] = _lines(values, parameter, name)
    return {
        title: chart.properties(width=480, height=260).configure_legend(labelLimit=300)
        for title, chart in charts.items()
    }


def write_charts(charts: Charts, folder: Path) -> None:
    """Write each chart as PNG and SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    for title, chart in charts.items():
        for form in ("png", "svg"):
            chart.save(folder / f"{file_stem(title)}.{form}", scale_factor=2)


def main_scores(results: Results) -> pd.DataFrame:
    """Return each group's main score in percent, with its costs and parameters."""
    scores = {(s["row"], s["column"], s["metric"]): s for s in results["scores"]}
    lines = []
    for group in results["groups"]:
        score = scores.get((group["row"], group["column"], group["metric"]))
        if score is not None and not group["overflow"]:
            means = group["means"]
            tokens = [means.get(f"tokens/{part}") or 0 for part in ("prompt", "completion")]
            ends = {key: round(100 * score[key], 6) for key in ("mean", "low", "high")}
            costs = {"model calls": means.get("steps") or 0, "tokens": sum(tokens)}
            line = {**group, **ends, **costs, "label": label(group["metric"])}
            if group["documents"] is not None:
                line["parameters"] = {**group["parameters"], "documents": group["documents"]}
            lines.append(line)
    return pd.DataFrame(lines)


def setting_lines(scores: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return scores by each parameter with several numbers; all else is fixed along a series."""
    found: dict[str, pd.DataFrame] = {}
    for name in dict.fromkeys(name for given in scores["parameters"] for name in given):
        own = scores[[name in given for given in scores["parameters"]]].copy()
        own[name] = [given[name] for given in own["parameters"]]
        own["series"] = [
            ", ".join([method, *(f"{key} {value}" for key, value in given.items() if key != name)])
            for method, given in zip(own["method"], own["parameters"], strict=True)
        ]
        if name == "documents":
            own["series"] = own["row"]
        is_text = own[name].map(lambda value: isinstance(value, str))
        if own[name][~is_text].nunique() > 1:
            # Texts ("unlimited") come after the numbers.
            own = pd.concat([own[~is_text].sort_values(name), own[is_text]])
            found[name] = own.astype({name: str})
    return found


def _scatter(scores: pd.DataFrame, cost: str, name: str) -> alt.LayerChart:
    base = alt.Chart(scores[["row", cost, "mean", "low", "high"]]).encode(
        x=alt.X(cost, title=f"{cost} per task", scale=alt.Scale(type="log", padding=14)),
        color=alt.Color("row", scale=_PALETTE, sort=None, title=None),
    )
    y = alt.Y("mean", title=f"{name}, percent", scale=alt.Scale(domain=[0, 100]))
    marks = base.mark_point(size=80, filled=True)
    marks = marks.encode(y=y, shape=alt.Shape("row", sort=None, legend=None))
    return base.mark_rule().encode(y="low", y2="high") + marks


def _lines(values: pd.DataFrame, x: str, name: str) -> alt.LayerChart:
    base = alt.Chart(values[[x, "series", "mean", "low", "high"]]).encode(
        x=alt.X(f"{x}:O", sort=None),
        color=alt.Color("series", scale=_PALETTE, sort=None, title=None),
    )
    title = f"{name}, percent"
    bars = base.mark_rule().encode(y=alt.Y("low", title=title), y2="high")
    return bars + base.mark_line(point=True).encode(y=alt.Y("mean", title=title))
