"""The charts of a report: one Vega-Lite specification each, drawn by the page and written to files alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from atommem.envs.task_files import replacing
from atommem.episode_stats import action_names
from atommem.eval.output import file_stem
from atommem.eval.reporting.inspection import FATES
from atommem.eval.reporting.results import Column, column_name, column_of
from atommem.eval.reporting.scores import label, main_label, main_score
from atommem.eval.reporting.tables import cells_of, columns_of, rows_of
from atommem.text_safety import clean

# Okabe and Ito's palette, which colour-blind readers tell apart; shapes and dashes, which repeat elsewhere, help too.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#8C564B")
_LOOKS: dict[str, Sequence[Any]] = {
    "shape": ("circle", "square", "triangle-up", "diamond", "cross"),
    "strokeDash": ([1, 0], [6, 3], [2, 2], [8, 2, 2, 2], [1, 4]),
}
_FATE_COLORS = ("#009E73", "#8FD3BC", "#E69F00", "#CC79A7", "#D55E00", "#B8BCC2")
_GREY = "#8a8a8a"
_CONFIG = {
    "background": None,
    "font": "Arial, Liberation Sans, sans-serif",
    "view": {"stroke": None},
    "axis": {"gridOpacity": 0.5, "titleFontWeight": "normal", "labelFontSize": 11, "labelAngle": 0},
    "legend": {
        "orient": "bottom",
        "columns": 2,
        "columnPadding": 24,
        "labelLimit": 300,
        "title": None,
    }
    | {"symbolOpacity": 1},
}
_ABOVE = alt.Axis(
    labelAlign="left",
    labelPadding=-2,
    labelOffset=-13,
    labelLimit=0,
    ticks=False,
    domain=False,
    zindex=1,
)
"""Names stand above their bars, so that long ones can be read on a narrow screen."""
_TOLD = ["row:N", "said:N"]
_FILE_WIDTH = 480
_MOST_BANDS = 5
"""Lines beyond which the bands of their intervals would hide one another: then the tables have them."""

Values = list[dict[str, Any]]
Cells = Sequence[Mapping[str, Any]]
Drawing = Any  # alt.LayerChart, or None where there is nothing to draw


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes:
        name: Of its files.
        section: Of the page: ``glance``, ``settings``, ``lost``, ``memory`` or ``training``.
        title: What it shows.
        column: The column that it is about; empty for all.
        spec: Vega-Lite, as wide as what holds it.
    """

    name: str
    section: str
    title: str
    column: str
    spec: dict[str, Any]

    @cached_property
    def svg(self) -> str:
        """Drawn once, for page and files."""
        return str(vl_convert.vegalite_to_svg({**self.spec, "width": _FILE_WIDTH}))


def make_charts(
    results: Mapping[str, Any], training: Sequence[Mapping[str, Any]] = ()
) -> list[Chart]:
    """Every chart that the data allows, in the order of the page.

    Args:
        results: Contents of ``results.json``.
        training: Entries of a run's ``metrics.jsonl``; may be empty.
    """
    several = len(columns_of(results)) > 1
    charts: list[Chart] = []
    for name, section, title, column, drawing in _drawings(results, training):
        if drawing is not None:
            place = column if several else None
            spec = drawing.properties(width="container").to_dict(
                validate=False, context={"pre_transform": False}
            )
            spec |= {"config": _CONFIG, "autosize": {"type": "fit-x", "contains": "padding"}}
            spec = json.loads(clean(json.dumps(spec, ensure_ascii=False)))
            stem = file_stem(
                "-".join(str(part) for part in (name, *(place or ())) if part is not None)
            )
            charts.append(Chart(stem, section, title, column_name(place) if place else "", spec))
    return charts


def write_charts(
    charts: Sequence[Chart], folder: Path, forms: Sequence[str] = ("png", "svg")
) -> None:
    """Write each chart in each of the `forms`; the same data gives the same files."""
    png = partial(vl_convert.svg_to_png, scale=2)
    draw: dict[str, Callable[[str], bytes]] = {
        "svg": str.encode,
        "png": png,
        "pdf": vl_convert.svg_to_pdf,
    }
    for chart, form in product(charts, forms):
        with replacing(folder / f"{chart.name}.{form}") as draft:
            draft.write_bytes(draw[form](chart.svg))


def _drawings(
    results: Mapping[str, Any], training: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str, str, Column | None, Drawing]]:
    rows = rows_of(results)
    for column in columns_of(results):
        cells = cells_of(results, column)
        # Where no prompt fits there is no score, nor is known which it would be.
        scored = [cell for cell in cells if main_score(cell)]
        score = main_label(scored)
        for name, keys, said in (
            ("calls", ("steps",), "model calls per task"),
            ("tokens", ("tokens/prompt", "tokens/completion"), "tokens per task"),
        ):
            yield (
                f"cost_{name}",
                "glance",
                f"{score} against {said}",
                column,
                _cost(scored, rows, keys, said),
            )
        tests = [item for item in results["comparisons"] if column_of(item) == column]
        main = [
            item
            for item in tests
            if item["metric"] in {cell["metric"] for cell in scored} and item["units"]
        ]
        yield (
            "differences",
            "glance",
            f"Differences in {score}, and their tests",
            column,
            _differences(main),
        )
        squares = grids(cells)
        for (one, two), values in squares.items():
            yield (
                f"{one}_{two}",
                "settings",
                f"{score} by {one} and {two}, percent",
                column,
                _grid(values, one, two),
            )
        for name, values in setting_lines(cells).items():
            if not any(name in pair for pair in squares):
                x = alt.X(
                    "x:O", title=name, sort=list(dict.fromkeys(value["x"] for value in values))
                )
                names = list(dict.fromkeys(value["row"] for value in values))
                yield (
                    name,
                    "settings",
                    f"{score} against {name}",
                    column,
                    _lines(values, x, _percent(score), names),
                )
        yield "lost", "lost", "Where answers are lost", column, _lost(cells)
        sizes = [
            {
                "row": cell["row"],
                "x": step,
                "mean": round(size, 2),
                "said": f"{size:.1f}; step taken by {n:,} episodes",
            }
            for cell in cells
            if any(cell.get("store_size_by_step", ()))
            for step, (size, n) in enumerate(
                zip(cell["store_size_by_step"], cell["episodes_by_step"], strict=True)
            )
        ]
        stored = _lines(sizes, alt.X("x:Q", title="step"), alt.Y("mean:Q", title="entries"), rows)
        yield "store_size", "memory", "Entries in the store, mean by step", column, stored
    for dataset in dict.fromkeys(cell["dataset"] for cell in results["cells"]):
        cells = [
            cell for cell in results["cells"] if cell["dataset"] == dataset and main_score(cell)
        ]
        points = [
            {**_scored(cell), "x": cell["documents"]}
            for cell in cells
            if cell["documents"] is not None
        ]
        points = points if len({point["x"] for point in points}) > 1 else []
        drawing = _lines(
            points, alt.X("x:O", title="documents in the stream"), _percent(main_label(cells)), rows
        )
        yield (
            f"documents-{dataset}",
            "settings",
            f"{main_label(cells)} against documents: {dataset}",
            None,
            drawing,
        )
    updates = [entry for entry in training if entry.get("reward") is not None]
    actions = {name: f"actions/{name}" for name in action_names(*updates)}
    actions = {
        name: key for name, key in actions.items() if any(entry.get(key) for entry in updates)
    }
    held = "em" if any("eval_em" in entry for entry in training) else "reward"
    rewards = {"mean reward": "reward", f"held-out {label(held)}": f"eval_{held}"}
    yield (
        "actions",
        "training",
        "Actions per step over training",
        None,
        _over(updates, actions, "actions per step"),
    )
    yield "reward", "training", "Reward over training", None, _over(training, rewards, "score")


def setting_lines(cells: Cells) -> dict[str, Values]:
    """By parameter with several numbers, the main score at each value; a line fixes the method and all others."""
    found: dict[str, Values] = {}
    for name in _parameters(cells):
        members = _having(cells, name)
        # Texts ("unlimited") come after the numbers, on one axis.
        members.sort(key=lambda cell: (isinstance(value := cell["parameters"][name], str), value))
        if (
            len(
                {
                    value
                    for cell in members
                    if not isinstance(value := cell["parameters"][name], str)
                }
            )
            > 1
        ):
            others = [other for other in _varied(members) if other != name]
            found[name] = [
                _scored(cell) | {"x": _said(cell["parameters"][name]), "row": _fixed(cell, others)}
                for cell in members
            ]
    return found


def grids(cells: Cells) -> dict[tuple[str, str], Values]:
    """By pair of parameters that vary together, the main score at each pair of values, if all else is fixed."""
    found: dict[tuple[str, str], Values] = {}
    for pair in combinations(_parameters(cells), 2):
        members = _having(cells, *pair)
        points = [[cell["parameters"][name] for name in pair] for cell in members]
        if {*_varied(members)} == {*pair} and not any(
            isinstance(value, str) for point in points for value in point
        ):
            found[pair] = [
                _scored(cell) | {"x": x, "y": y}
                for cell, (x, y) in zip(members, points, strict=True)
            ]
    return found


def _parameters(cells: Cells) -> list[str]:
    return list(dict.fromkeys(name for cell in cells for name in cell["parameters"]))


def _having(cells: Cells, *parameters: str) -> list[Mapping[str, Any]]:
    return [
        cell for cell in cells if {*parameters} <= cell["parameters"].keys() and main_score(cell)
    ]


def _varied(cells: Cells) -> list[str]:
    """The parameters in which cells differ, and ``method`` if they differ in that."""
    every = [{"method": cell["method"], **cell["parameters"]} for cell in cells]
    names = dict.fromkeys(name for of in every for name in of)
    return [name for name in names if len({of.get(name) for of in every}) > 1]


def _fixed(cell: Mapping[str, Any], names: Sequence[str]) -> str:
    """What is fixed along a line, as far as other lines differ in it."""
    values = {"method": cell["method"], **cell["parameters"]}
    own = {name: values[name] for name in names if name in values}
    said = (
        value if isinstance(value, str) else f"{name} {_said(value)}" for name, value in own.items()
    )
    return ", ".join(said) or str(cell["method"])


def _said(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:,g}"


def _scored(cell: Mapping[str, Any]) -> dict[str, Any]:
    """The main score in percent with its interval."""
    score = main_score(cell) or {}
    mean, low, high = (round(100 * score[key], 6) for key in ("mean", "low", "high"))
    said = f"{mean:.1f} [{low:.1f}, {high:.1f}], n = {score['n']:,}"
    return {"row": cell["row"], "mean": mean, "low": low, "high": high, "said": said}


def _data(values: Values) -> alt.Chart:
    return alt.Chart(alt.Data(values=values))


def _percent(title: str) -> alt.Y:
    return alt.Y("mean:Q", title=f"{title}, percent", scale=alt.Scale(domain=[0, 100]))


def _look(values: Values, names: Sequence[str], mark: str) -> dict[str, Any]:
    """Colour, and shape or dash, of each row: it looks the same in all charts."""
    drawn = {value["row"] for value in values}
    stroke = {"symbolType": "stroke", "symbolStrokeWidth": 3} if mark == "strokeDash" else {}
    legend = alt.Legend(values=[name for name in names if name in drawn], **stroke)
    color, range_ = (
        alt.Scale(domain=list(names), range=looks) for looks in (_COLORS, _LOOKS[mark])
    )
    channel = alt.StrokeDash if stroke else alt.Shape
    return {
        "color": alt.Color("row:N", scale=color, legend=legend),
        mark: channel("row:N", scale=range_, legend=legend),
    }


def _picked(base: alt.Chart) -> alt.Chart:
    """A click on the legend picks rows out."""
    chosen = alt.selection_point("chosen", fields=["row"], bind="legend")
    return base.encode(
        opacity=alt.when(chosen).then(alt.value(1)).otherwise(alt.value(0.1))
    ).add_params(chosen)


def _lines(values: Values, x: alt.X, y: alt.Y, names: Sequence[str]) -> Drawing:
    """A line with points for each row, and the interval of each mean as a band."""
    if not values:
        return None
    look = _look(values, names, "strokeDash")
    line = _data(values).mark_line(point=len(values) < 400).encode(x=x, y=y, **look, tooltip=_TOLD)
    layers = [_picked(line)]
    if "low" in values[0] and len({value["row"] for value in values}) <= _MOST_BANDS:
        band = (
            _data(values)
            .mark_area(opacity=0.12)
            .encode(x=x, y="low:Q", y2="high:Q", color=look["color"])
        )
        layers.insert(0, band)
    return alt.layer(*layers).properties(height=230)


def _cost(cells: Cells, rows: Sequence[str], keys: Sequence[str], said: str) -> Drawing:
    """The main score against what a task costs, with a point for each row."""
    costs = [sum(cell["means"].get(key) or 0 for key in keys) for cell in cells]
    points = zip(cells, costs, strict=True)
    values = [{**_scored(cell), "x": round(x, 2)} for cell, x in points if x]
    if len(values) < 2:
        return None
    look = _look(values, rows, "shape")
    scale, axis = alt.Scale(type="log", padding=14, nice=False), alt.Axis(format=",~r")
    base = _data(values).encode(x=alt.X("x:Q", title=f"{said} (log)", scale=scale, axis=axis))
    rule = base.mark_rule().encode(y="low:Q", y2="high:Q", color=look["color"])
    told = [*_TOLD, alt.Tooltip("x:Q", title=said, format=",.1f")]
    point = base.mark_point(size=80, filled=True).encode(
        y=_percent(main_label(cells)), tooltip=told, **look
    )
    return alt.layer(rule, _picked(point)).properties(height=260)


def _differences(tests: Cells) -> Drawing:
    """A forest plot: each tested difference with its interval, and what the test says."""
    if not tests:
        return None
    values = []
    for item in tests:
        low, mean, high = (round(100 * item[key], 2) for key in ("low", "difference", "high"))
        ends = f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"
        values.append(
            {
                "row": f"{item['second']} - {item['first']}, p {item['p_holm']:.2g}",
                "said": f"{ends}, n = {item['questions']:,}, p {item['p_value']:.2g}, after Holm {item['p_holm']:.2g}",
                "test": "significant" if item["significant"] else "not significant",
                **{"low": low, "mean": mean, "high": high},
            }
        )
    scale = {"domain": ["significant", "not significant"]}
    color, shape = (
        alt.Scale(**scale, range=[_COLORS[0], _GREY]),
        alt.Scale(**scale, range=["circle", "diamond"]),
    )
    base = _data(values).encode(
        y=alt.Y("row:N", sort=None, title=None, axis=_ABOVE),
        color=alt.Color("test:N", scale=color),
        tooltip=_TOLD,
    )
    zero = _data([{"x": 0}]).mark_rule(color=_GREY, strokeDash=[3, 3]).encode(x="x:Q")
    rule = base.mark_rule(strokeWidth=2).encode(
        x=alt.X("low:Q", title="difference, points [95%]"), x2="high:Q"
    )
    point = base.mark_point(filled=True, size=70, opacity=1).encode(
        x="mean:Q", shape=alt.Shape("test:N", scale=shape)
    )
    return alt.layer(zero, rule, point).properties(height=36 * len(values) + 10)


def _grid(values: Values, one: str, two: str) -> Drawing:
    """A heat map with its numbers."""
    base = _data(values).encode(
        x=alt.X("x:O", title=one), y=alt.Y("y:O", title=two, sort="descending"), tooltip=_TOLD
    )
    middle = (min(value["mean"] for value in values) + max(value["mean"] for value in values)) / 2
    ink = (
        alt.when(alt.datum.mean > middle).then(alt.value("#111111")).otherwise(alt.value("#ffffff"))
    )
    color = alt.Color("mean:Q", scale=alt.Scale(scheme="cividis"), legend=None)
    numbers = base.mark_text(fontSize=13).encode(text=alt.Text("mean:Q", format=".1f"), color=ink)
    return alt.layer(base.mark_rect().encode(color=color), numbers).properties(
        height=44 * len({value["y"] for value in values})
    )


def _lost(cells: Cells) -> Drawing:
    """A bar for each row: all of its questions that are counted."""
    kept = [cell for cell in cells if cell.get("lost") and cell["lost"]["counted"]]
    values = [
        {
            "row": f"{cell['row']} (n {cell['lost']['counted']:,})",
            "fate": name,
            "share": round(cell["lost"][fate] / cell["lost"]["counted"], 4),
            "order": order,
            "said": f"{name}: {cell['lost'][fate]:,} questions",
        }
        for cell in kept
        for order, (fate, name) in enumerate(FATES.items())
    ]
    if not values:
        return None
    color = alt.Color("fate:N", scale=alt.Scale(domain=list(FATES.values()), range=_FATE_COLORS))
    share = alt.X(
        "share:Q", stack="zero", title="share of the questions counted", axis=alt.Axis(format="%")
    )
    base = _data(values).encode(
        x=share.scale(domain=[0, 1]), order="order:O", tooltip=[*_TOLD, "share:Q"]
    )
    base = base.encode(y=alt.Y("row:N", sort=None, title=None, axis=_ABOVE))
    return alt.layer(base.mark_bar(height=15).encode(color=color)).properties(height=36 * len(kept))


def _over(training: Sequence[Mapping[str, Any]], keys: Mapping[str, str], title: str) -> Drawing:
    """Lines over training: by name, the key of an entry."""
    values = [
        {"row": name, "x": entry["step"], "mean": entry[key], "said": f"{entry[key]:.3g}"}
        for name, key in keys.items()
        for entry in training
        if isinstance(entry.get(key), int | float) and "step" in entry
    ]
    return _lines(
        values, alt.X("x:Q", title="update of the policy"), alt.Y("mean:Q", title=title), list(keys)
    )
