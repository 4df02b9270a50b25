"""The paper's tables and figures from saved runs, its numbers beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from atommem.envs.scoring.statistics import wilson_interval
from papers.experience_following.runs import Arm, Run
from papers.experiment import Journal, Report

POINTS = 10
"""Points of a curve in its table; a plot has them all."""
MISSING = "not at hand"


def load_run(folder: Path, agent: str, name: str) -> Run | None:
    """Return a saved run that is whole, or None."""
    arm = Arm.parse(name)
    path = arm.file(folder / agent)
    run = Run(arm, Journal(path)) if path.is_file() else None
    return run if run is not None and run.is_whole else None


def _mean(values: Sequence[float], scale: float = 1) -> float | None:
    return scale * float(np.mean(values)) if values else None


def _interval(run: Run) -> str:
    low, high = wilson_interval(round(run.column("outcome").sum()), len(run.lines))
    return f"[{100 * low:.1f}, {100 * high:.1f}] of {len(run.lines)}"


COLUMNS: Mapping[str, Callable[[Run], Any]] = {
    "success": lambda run: _mean(list(run.column("outcome")), 100),
    "95%": _interval,
    "size": lambda run: run.size,
    "r": lambda run: run.r,
    "retained": lambda run: _mean(run.records(False, "error", 6)),
    "deleted": lambda run: _mean(run.records(True, "error", 6)),
    "retained right": lambda run: _mean(run.records(False, "outcome"), 100),
    "deleted right": lambda run: _mean(run.records(True, "outcome"), 100),
}
"""Figures of a run; errors are those of records used six times or more."""


def add_runs(report: Report, runs: Sequence[Run]) -> None:
    """Add these runs, and check what follows from the rules: the size without deletions."""
    columns = ["success", "95%", "size", "r"]
    rows = [[run.arm.name, *(COLUMNS[name](run) for name in columns)] for run in runs]
    report.table("The arms just played", ["arm", *columns], rows, 2)
    for run in runs:
        arm, done = run.arm, len(run.lines)
        report.check(f"{arm.name}: tasks", run.is_whole, done, run.settings["tasks"])
        wins = int(sum(run.column("outcome") >= 1))
        added = {"fixed": 0, "add all": done, "strict": wins}.get(arm.evaluator)
        if arm.deletion == "none" and not arm.error_free and added is not None:
            wanted = run.settings["initial"] + added
            report.check(f"{arm.name}: records", run.size == wanted, run.size, wanted)


def add_table(report: Report, paper: Mapping[str, Any], number: int, folder: Path) -> None:
    """Add one of the paper's tables."""
    table = paper["tables"][number]
    names, rows = table["columns"], []
    for agent in paper["agents"]:
        for name in (name for name, cells in table["rows"].items() if agent in cells):
            run, published = load_run(folder, agent, name), table["rows"][name][agent]
            printed = [*published, *[None] * len(names)][: len(names)]
            ours = [MISSING if run is None else COLUMNS[one](run) for one in [*names, "95%"]]
            rows.append([agent, name, *printed, *ours])
    columns = ["agent", "arm", *names, *(f"{name}, ours" for name in [*names, "95%"])]
    report.table(f"Table {number}: {table['title']}", columns, rows, 2)
    _describe(report, paper, folder)


def add_figure(
    report: Report,
    paper: Mapping[str, Any],
    number: int,
    folder: Path,
    out: Path | None = None,
    agents: Sequence[str] = (),
) -> None:
    """Add the curves of one of the paper's figures, of its agents or others; plot them to `out`."""
    figure = paper["figures"][number]
    curves: dict[str, list[tuple[str, Any, Any]]] = {
        agent: [] for agent in agents or figure["agents"]
    }
    for agent in curves:
        for name in figure["arms"]:
            run = load_run(folder, agent, name)
            found = CURVES[figure["kind"]](run, figure) if run is not None else {"": ([], [])}
            curves[agent] += [(name + suffix, *xy) for suffix, xy in found.items()]
    rows = [[agent, name, _points(x, y)] for agent in curves for name, x, y in curves[agent]]
    report.table(f"Figure {number}: {_AXES[figure['kind']]}", ["agent", "arm", "ours"], rows)
    if "models" in figure:
        report.notes.append(f"The paper's figure is of {figure['models']}; ours of the runs below.")
    _describe(report, paper, folder)
    if out is not None:
        _plot(curves, _AXES[figure["kind"]], out / f"figure{number}.png")


def _points(x: Any, y: Any) -> str:
    places = np.unique(np.linspace(0, max(0, len(x) - 1), POINTS).astype(int))
    return "; ".join(f"{x[i]:.3g}: {y[i]:.3g}" for i in places if len(x)) or MISSING


def _density(run: Run, figure: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    from scipy.stats import gaussian_kde

    errors = [run.records(deleted, "error", figure["uses"]) for deleted in (False, True)]
    x, found = np.linspace(0, max([1.0, *errors[0], *errors[1]]), 100), {}
    for suffix, values in zip((", retained", ", deleted"), errors, strict=True):
        found[suffix] = (x, gaussian_kde(values)(x)) if len(set(values)) > 1 else ([], [])
    return found


CURVES: Mapping[str, Callable[[Run, Mapping[str, Any]], dict[str, tuple[Any, Any]]]] = {
    "trend": lambda run, _: {
        "": (np.arange(1, len(run.lines) + 1), 100 * run.running("outcome")),
    },
    "following": lambda run, _: {"": (run.running("near"), run.running("alike"))},
    "density": _density,
    "size": lambda run, _: {"": ([run.size], [100 * run.column("outcome").mean()])},
}
"""Kinds of figures: curves of a run by the ending of their names."""
_AXES = {
    "trend": "tasks: success so far, percent",
    "following": "mean input similarity so far: mean output similarity",
    "density": "error of the record: density",
    "size": "limit of the memory: success, percent",
}


def _plot(curves: Mapping[str, list[tuple[str, Any, Any]]], axes: str, path: Path) -> None:
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    figure = Figure(figsize=(6 * len(curves), 4), layout="constrained")
    for plot, (agent, lines) in zip(
        figure.subplots(1, len(curves), squeeze=False)[0], curves.items(), strict=True
    ):
        for name, x, y in lines:
            plot.plot(x, y, marker="o" if len(x) < POINTS else None, label=name)
        x_label, y_label = axes.split(": ")
        plot.set(title=agent, xlabel=x_label, ylabel=y_label)
        plot.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _describe(report: Report, paper: Mapping[str, Any], folder: Path) -> None:
    """Note whose runs these are: the paper's models and data are others."""
    for agent in paper["agents"]:
        for path in sorted((folder / agent).glob("*.jsonl"))[:1]:
            settings = Journal(path).get("settings", {})
            report.notes.append(
                f"{agent}, ours: policy {settings.get('policy')}, judges {settings.get('judges')}, "
                f"data {settings.get('data')}; the paper: GPT-4o-mini on its own data."
            )
