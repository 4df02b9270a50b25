"""Plots for papers, PNG and SVG: EM against documents and settings, lost answers, store size, action rates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atommem.episode_stats import action_names
from atommem.eval.reporting.compared_settings import SettingChart, setting_charts
from atommem.eval.reporting.fates import Fate
from atommem.eval.reporting.results import Column, column_name
from atommem.eval.reporting.scores import main_label, main_score
from atommem.eval.reporting.tables import FATES, columns_of, rows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: eight colours that colour-blind readers tell apart; further lines are dashed.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#222222")
_DASHES = ("-", "--", ":")
_FATE_COLORS = {
    Fate.RIGHT: "#009E73",
    Fate.RIGHT_OTHERWISE: "#8FD3BC",
    Fate.MISREAD: "#E69F00",
    Fate.NOT_RETRIEVED: "#CC79A7",
    Fate.FORGOTTEN: "#D55E00",
    Fate.NEVER_ENTERED: "#B8BCC2",
}
_STYLE = {
    "svg.hashsalt": "atommem",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.0,
    "legend.frameon": False,
}

_ACROSS = 3
"""Most panels side by side."""

Panel = tuple[str, Callable[["Axes"], None]]
"""A title and what draws into the axes."""


def write_plots(results: Mapping[str, Any], training: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Draw what the data allows, each plot as a PNG and as an SVG file.

    The same data gives the same files: no date, no version and none of the user's own matplotlib settings enter them.

    Args:
        results: Contents of ``results.json``.
        training: Entries of a run's ``metrics.jsonl``; may be empty.
        folder: Made if it is not there.

    Returns:
        The files.
    """
    import matplotlib

    paths: list[Path] = []
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        for name, panels, height in (
            ("em_by_documents", _by_documents(results), 2.6),
            ("em_by_setting", _by_setting(results), 2.6),
            ("lost", _lost(results), 0.9 + 0.2 * len(rows_of(results))),
            ("store_size", _store_size(results), 2.6),
            ("actions", _actions(training), 2.8),
        ):
            if panels:
                paths += _save(_figure(panels, height), folder, name)
    return paths


def _figure(panels: Sequence[Panel], height: float) -> Figure:
    """Panels side by side, with one legend for all of them below. Without pyplot: no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = min(_ACROSS, len(panels))
    down = ceil(len(panels) / across)
    width = 6.2 if across == 1 else 3.3 * across + 0.4
    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(down, across, squeeze=False)
    handles: dict[str, Any] = {}
    for axes, (title, draw) in zip(grid.flat, panels, strict=False):
        draw(axes)
        if len(panels) > 1:
            axes.set_title(title)
        found, names = axes.get_legend_handles_labels()
        handles |= {name: handle for handle, name in zip(found, names, strict=True) if name not in handles}
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    longest = max(map(len, handles), default=1)
    columns = max(1, min(len(handles), int(width * 11 / (longest + 6))))
    figure.set_size_inches(width, height * down + 0.3 + 0.2 * ceil(len(handles) / columns))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, fontsize=8)
    return figure


def _save(figure: Figure, folder: Path, name: str) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
        path = folder / f"{name}.{suffix}"
        figure.savefig(path, dpi=200, metadata=metadata)
        yield path


def _by_documents(results: Mapping[str, Any]) -> list[Panel]:
    """A panel for each data set with several sizes."""
    panels = []
    colors = _line_styles(rows_of(results))
    for dataset in dict.fromkeys(cell["dataset"] for cell in results["cells"]):
        cells = [
            cell
            for cell in results["cells"]
            if cell["dataset"] == dataset and cell["documents"] is not None and main_score(cell) is not None
        ]
        if len({cell["documents"] for cell in cells}) > 1:
            panels.append((dataset, _documents_panel(cells, colors)))
    return panels


def _documents_panel(cells: Sequence[Mapping[str, Any]], styles: Mapping[str, Any]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for row, style in styles.items():
            line = sorted((cell for cell in cells if cell["row"] == row), key=lambda cell: int(cell["documents"]))
            _band(
                axes,
                [cell["documents"] for cell in line],
                [cell["metrics"][cell["metric"]] for cell in line],
                row,
                style,
            )
        ticks = sorted({cell["documents"] for cell in cells})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], rotation=45 if len(ticks) > 5 else 0)
        axes.minorticks_off()
        axes.set_xlabel("documents in the stream")
        _score_axis(axes, main_label(cells))

    return draw


def _by_setting(results: Mapping[str, Any]) -> list[Panel]:
    """A panel for each parameter in each column."""
    several = len(columns_of(results)) > 1
    panels = []
    for chart in setting_charts(results):
        title = f"{chart.parameter}, {column_name(chart.column)}" if several else chart.parameter
        panels.append((title, _setting_panel(chart)))
    return panels


def _setting_panel(chart: SettingChart) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for (name, cells), style in zip(chart.lines.items(), _line_styles(list(chart.lines)).values(), strict=True):
            points = [(place, cell["metrics"][cell["metric"]]) for place, cell in enumerate(cells) if cell is not None]
            _band(axes, [place for place, _ in points], [score for _, score in points], name, style)
        labels = [value if isinstance(value, str) else f"{value:,g}" for value in chart.values]
        axes.set_xticks(range(len(labels)), labels)
        axes.set_xlabel(chart.parameter)
        _score_axis(axes, chart.score)

    return draw


def _band(axes: Axes, places: Sequence[float], scores: Sequence[Mapping[str, float]], name: str, style: Any) -> None:
    """A line with the interval of each mean as a band."""
    if not places:
        return
    axes.plot(places, [100 * score["mean"] for score in scores], marker="o", markersize=3, label=name, **style)
    low, high = ([100 * score[end] for score in scores] for end in ("low", "high"))
    axes.fill_between(places, low, high, color=style["color"], alpha=0.12, linewidth=0)


def _score_axis(axes: Axes, name: str) -> None:
    axes.set_ylabel(f"{name}, percent")
    axes.set_ylim(0, 102)
    axes.grid(axis="y", alpha=0.3)


def _lost(results: Mapping[str, Any]) -> list[Panel]:
    """A panel for each column, a bar for each row; a row has the same height in all of them."""
    panels: list[Panel] = []
    found = {
        column: _cells(results, column, lambda cell: bool(cell.get("lost")) and cell["lost"]["counted"])
        for column in columns_of(results)
    }
    drawn = {cell["row"] for cells in found.values() for cell in cells}
    rows = [row for row in rows_of(results) if row in drawn]
    for column, cells in found.items():
        if cells:
            panels.append((column_name(column), _lost_panel(cells, rows, named=len(panels) % _ACROSS == 0)))
    return panels


def _lost_panel(cells: Sequence[Mapping[str, Any]], rows: Sequence[str], *, named: bool) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        places = [rows.index(cell["row"]) for cell in cells]
        left = [0.0] * len(cells)
        for fate, name in FATES.items():
            shares = [100 * cell["lost"][fate] / cell["lost"]["counted"] for cell in cells]
            axes.barh(places, shares, left=left, height=0.72, color=_FATE_COLORS[fate], label=name)
            left = [start + share for start, share in zip(left, shares, strict=True)]
        axes.set_yticks(range(len(rows)), rows if named else [""] * len(rows))
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(0, 100)
        axes.set_xlabel("percent of questions")

    return draw


def _store_size(results: Mapping[str, Any]) -> list[Panel]:
    """A panel for each column."""
    panels = []
    styles = _line_styles(rows_of(results))
    for column in columns_of(results):
        cells = _cells(results, column, lambda cell: any(cell.get("store_size_by_step", ())))
        if cells:
            panels.append((column_name(column), _size_panel(cells, styles)))
    return panels


def _size_panel(cells: Sequence[Mapping[str, Any]], styles: Mapping[str, Any]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for cell in cells:
            axes.plot(cell["store_size_by_step"], label=cell["row"], **styles[cell["row"]])
        axes.set_xlabel("step")
        axes.set_ylabel("entries in the store (mean)")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", alpha=0.3)

    return draw


def _actions(training: Sequence[Mapping[str, Any]]) -> list[Panel]:
    updates = [entry for entry in training if entry.get("reward") is not None]
    lines = {
        action: [(entry["step"], entry.get(f"actions/{action}") or 0.0) for entry in updates]
        for action in action_names(*updates)
    }
    drawn = {action: points for action, points in lines.items() if any(rate for _, rate in points)}

    def draw(axes: Axes) -> None:
        for (action, points), style in zip(drawn.items(), _line_styles(list(drawn)).values(), strict=True):
            axes.plot(*zip(*points, strict=True), label=action, **style)
        axes.set_xlabel("update of the policy")
        axes.set_ylabel("actions per step")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", alpha=0.3)

    return [("", draw)] if drawn else []


def _cells(
    results: Mapping[str, Any], column: Column, wanted: Callable[[Mapping[str, Any]], Any]
) -> list[Mapping[str, Any]]:
    return [cell for cell in results["cells"] if (cell["dataset"], cell["documents"]) == column and wanted(cell)]


def _line_styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour and dash of each line; the same row looks the same in all panels."""
    count = len(_COLORS)
    return {
        name: {"color": _COLORS[place % count], "linestyle": _DASHES[place // count % len(_DASHES)]}
        for place, name in enumerate(names)
    }
