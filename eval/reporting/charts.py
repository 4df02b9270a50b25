"""The charts of a report: Vega-Lite specifications, rendered to files and for the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import vl_convert

from atommem.envs.task_files import replacing
from atommem.episode import action_names
from atommem.eval.output import file_stem
from atommem.eval.reporting.inspection import STAGES
from atommem.eval.reporting.results import label
from atommem.text_safety import clean

# Okabe and Ito's palette for colour-blind readers; shapes repeat the distinction.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#8C564B")
_STAGE_COLORS = ("#009E73", "#8FD3BC", "#E69F00", "#CC79A7", "#D55E00", "#B8BCC2")
_CONFIG = {
    "font": "Arial, Liberation Sans, sans-serif",
    "axis": {"gridOpacity": 0.5, "labelAngle": 0, "labelLimit": 300},
    "legend": {"orient": "bottom", "columns": 2, "labelLimit": 300, "title": None},
    "view": {"stroke": None},
}
_WIDTH = 480
Drawing = Any  # alt.Chart or alt.LayerChart


@dataclass(frozen=True)
class Chart:
    """A chart: file name, title, and Vega-Lite specification."""

    name: str
    title: str
    spec: dict[str, Any]

    @cached_property
    def svg(self) -> str:
        """Render the chart as SVG."""
        return str(vl_convert.vegalite_to_svg(self.spec))


def make_charts(
    results: Mapping[str, Any], training: Sequence[Mapping[str, Any]] = ()
) -> list[Chart]:
    """Draw every chart for which there is data.

    Args:
        training: Entries of a training run's ``metrics.jsonl``.
    """
    charts = []
    for name, title, drawing in _drawings(results, training):
        spec = drawing.properties(width=_WIDTH).to_dict(
            validate=False, context={"pre_transform": False}
        )
        spec = json.loads(clean(json.dumps(spec | {"config": _CONFIG}, ensure_ascii=False)))
        charts.append(Chart(file_stem(name), title, spec))
    return charts


def write_charts(
    charts: Sequence[Chart], folder: Path, formats: Sequence[str] = ("png", "svg")
) -> None:
    """Write each chart in each of the formats ``png``, ``svg``, ``pdf``."""
    render: dict[str, Callable[[str], bytes]] = {
        "svg": str.encode,
        "png": partial(vl_convert.svg_to_png, scale=2),
        "pdf": vl_convert.svg_to_pdf,
    }
    for chart, form in product(charts, formats):
        with replacing(folder / f"{chart.name}.{form}") as draft:
            draft.write_bytes(render[form](chart.svg))


def main_scores(results: Mapping[str, Any]) -> pd.DataFrame:
    """Return each group's main score in percent, with its means and parameters."""
    scores = {(s["row"], s["column"], s["metric"]): s for s in results["scores"]}
    lines = []
    for group in results["groups"]:
        score = scores.get((group["row"], group["column"], group["metric"]))
        if score is not None and not group["overflow"]:
            means = group["means"]
            tokens = (means.get(f"tokens/{part}") or 0 for part in ("prompt", "completion"))
            ends = {key: round(100 * score[key], 6) for key in ("mean", "low", "high")}
            costs = {"calls": means.get("steps"), "tokens": sum(tokens)}
            lines.append({**group, **ends, **costs, "label": label(group["metric"])})
    return pd.DataFrame(lines)


def _drawings(
    results: Mapping[str, Any], training: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str, Drawing]]:
    scores = main_scores(results)
    for column in dict.fromkeys(group["column"] for group in results["groups"]):
        groups = [group for group in results["groups"] if group["column"] == column]
        own = scores[scores["column"] == column] if len(scores) else scores
        if len(own):
            name = " / ".join(dict.fromkeys(own["label"]))
            for cost, title in (("calls", "model calls"), ("tokens", "tokens")):
                points = own[own[cost].fillna(0) > 0]
                if len(points) > 1:
                    drawing = _scatter(points, cost, f"{title} per task (log)", name)
                    yield f"cost_{cost}-{column}", f"{name} against {title}: {column}", drawing
            for parameter, values in setting_lines(own).items():
                drawing = _lines(values, f"{parameter}:N", parameter, f"{name}, percent")
                yield f"{parameter}-{column}", f"{name} against {parameter}: {column}", drawing
            tests = [
                test
                for test in results["comparisons"]
                if test["column"] == column and test["metric"] in {*own["metric"]} and test["units"]
            ]
            if tests:
                title = f"Differences in {name}: {column}"
                yield f"differences-{column}", title, _differences(tests)
        if any((group.get("lost") or {}).get("counted") for group in groups):
            yield f"lost-{column}", f"Where answers are lost: {column}", _lost(groups)
        sizes = [
            {"series": group["row"], "step": step, "mean": size}
            for group in groups
            for step, size in enumerate(group.get("store_size_by_step", ()))
        ]
        if any(line["mean"] for line in sizes):
            drawing = _lines(pd.DataFrame(sizes), "step:Q", "step", "entries")
            yield f"store_size-{column}", f"Entries in the store by step: {column}", drawing
    if len(scores):
        known = scores.dropna(subset=["documents"])
        for dataset, values in known.groupby("dataset", sort=False):
            if values["documents"].nunique() > 1:
                values = values.assign(series=values["row"])
                drawing = _lines(values, "documents:O", "documents in the stream", "percent")
                yield f"documents-{dataset}", f"Score against documents: {dataset}", drawing
    yield from _training_drawings(training)


def setting_lines(scores: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return scores by each parameter with several numbers; all else is fixed along a series."""
    found: dict[str, pd.DataFrame] = {}
    names = list(dict.fromkeys(name for given in scores["parameters"] for name in given))
    for name in names:
        own = scores[[name in given for given in scores["parameters"]]]
        values = [given[name] for given in own["parameters"]]
        if len({value for value in values if not isinstance(value, str)}) > 1:
            series = []
            for method, given in zip(own["method"], own["parameters"], strict=True):
                others = [f"{key} {value}" for key, value in given.items() if key != name]
                series.append(", ".join([method, *others]))
            # Texts ("unlimited") come after the numbers.
            own = own.assign(**{name: values, "series": series})
            order = sorted(
                own.index, key=lambda i: (isinstance(own.at[i, name], str), own.at[i, name])
            )
            found[name] = own.loc[order].astype({name: str})
    return found


def _chart(frame: pd.DataFrame) -> alt.Chart:
    return alt.Chart(alt.Data(values=json.loads(frame.to_json(orient="records"))))


def _scatter(points: pd.DataFrame, x: str, x_title: str, y_title: str) -> Drawing:
    look = alt.Color("row:N", scale=alt.Scale(range=list(_COLORS)), sort=None)
    scale = alt.Scale(type="log", padding=14, nice=False)
    base = _chart(points[["row", x, "mean", "low", "high"]]).encode(
        x=alt.X(f"{x}:Q", title=x_title, scale=scale, axis=alt.Axis(format=",~r")), color=look
    )
    y = alt.Y("mean:Q", title=f"{y_title}, percent", scale=alt.Scale(domain=[0, 100]))
    marks = base.mark_point(size=80, filled=True).encode(y=y, shape=alt.Shape("row:N", sort=None))
    return alt.layer(base.mark_rule().encode(y="low:Q", y2="high:Q"), marks).properties(height=260)


def _lines(values: pd.DataFrame, x: str, x_title: str, y_title: str) -> Drawing:
    color = alt.Color("series:N", scale=alt.Scale(range=list(_COLORS)), sort=None)
    keep = [x.partition(":")[0], "series", *({"mean", "low", "high"} & {*values.columns})]
    base = _chart(values[keep]).encode(x=alt.X(x, title=x_title, sort=None), color=color)
    y = alt.Y("mean:Q", title=y_title)
    line = base.mark_line(point=len(values) < 400).encode(y=y)
    if "low" not in values:
        return line.properties(height=230)
    band = base.mark_errorbar(ticks=True).encode(y=alt.Y("low:Q", title=y_title), y2="high:Q")
    return alt.layer(band, line).properties(height=230)


def _differences(tests: Sequence[Mapping[str, Any]]) -> Drawing:
    """Draw each tested difference with its interval."""
    frame = pd.DataFrame(
        {
            "pair": f"{test['second']} - {test['first']}, p {test['p_holm']:.2g}",
            "test": "significant" if test["significant"] else "not significant",
            **{key: 100 * test[key] for key in ("low", "difference", "high")},
        }
        for test in tests
    )
    color = alt.Scale(domain=["significant", "not significant"], range=[_COLORS[0], _COLORS[6]])
    base = _chart(frame).encode(
        y=alt.Y("pair:N", sort=None, title=None), color=alt.Color("test:N", scale=color)
    )
    zero = alt.Chart(alt.Data(values=[{"x": 0}])).mark_rule(strokeDash=[3, 3]).encode(x="x:Q")
    x = alt.X("low:Q", title="difference, points [95%]")
    rule = base.mark_rule(strokeWidth=2).encode(x=x, x2="high:Q")
    point = base.mark_point(filled=True, size=70).encode(x="difference:Q", shape="test:N")
    return alt.layer(zero, rule, point).properties(height=36 * len(frame) + 10)


def _lost(groups: Sequence[Mapping[str, Any]]) -> Drawing:
    """Draw a bar of stages for each row."""
    frame = pd.DataFrame(
        {
            "row": f"{group['row']} (n {lost['counted']:,})",
            "stage": name,
            "share": lost[stage] / lost["counted"],
            "order": order,
        }
        for group in groups
        if (lost := group.get("lost")) and lost["counted"]
        for order, (stage, name) in enumerate(STAGES.items())
    )
    scale = alt.Scale(domain=list(STAGES.values()), range=list(_STAGE_COLORS))
    share = alt.X("share:Q", title="share of the questions counted", axis=alt.Axis(format="%"))
    bars = (
        _chart(frame)
        .mark_bar(height=15)
        .encode(
            x=share.scale(domain=[0, 1]),
            y=alt.Y("row:N", sort=None, title=None),
            color=alt.Color("stage:N", scale=scale, sort=None),
            order="order:O",
        )
    )
    return bars.properties(height=36 * frame["row"].nunique())


def _training_drawings(
    training: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, str, Drawing]]:
    actions = {name: f"actions/{name}" for name in action_names(*training)}
    held_out = "em" if any("eval_em" in entry for entry in training) else "reward"
    rewards = {"mean reward": "reward", f"held-out {label(held_out)}": f"eval_{held_out}"}
    for name, title, keys in (
        ("actions", "Actions per step over training", actions),
        ("reward", "Reward over training", rewards),
    ):
        lines = [
            {"series": series, "step": entry["step"], "mean": entry[key]}
            for series, key in keys.items()
            if any(entry.get(key) for entry in training)
            for entry in training
            if isinstance(entry.get(key), int | float) and "step" in entry
        ]
        if lines:
            yield name, title, _lines(pd.DataFrame(lines), "step:Q", "update of the policy", "")
