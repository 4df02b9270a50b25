"""Plots for papers: EM against documents, where answers are lost, store size, action rates. PNG and SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.reporting.results import column_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ACTIONS = ("scratchpad", "create", "read", "update", "delete")
_STAGES = ("located", "entered", "kept", "shown", "answered")


def write_plots(results: Mapping[str, Any], training: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Draw what the data allows, each plot as a PNG and as an SVG file.

    Args:
        results: Contents of ``results.json``.
        training: Entries of a run's ``metrics.jsonl``; may be empty.
        folder: Made if it is not there.

    Returns:
        The files.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    paths: list[Path] = []
    for name, draw in (
        ("em_by_documents", lambda axes: _by_documents(axes, results)),
        ("funnel", lambda axes: _funnel(axes, results)),
        ("store_size", lambda axes: _store_size(axes, results)),
        ("actions", lambda axes: _actions(axes, training)),
    ):
        # Without pyplot: no display, no global state.
        figure = Figure(figsize=(6, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        if not draw(axes):
            continue
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
        folder.mkdir(parents=True, exist_ok=True)
        for suffix in ("png", "svg"):
            path = folder / f"{name}.{suffix}"
            # A fixed salt and no date: the same results give the same files.
            with matplotlib.rc_context({"svg.hashsalt": "atommem"}):
                figure.savefig(path, dpi=200, metadata={"Date": None} if suffix == "svg" else None)
            paths.append(path)
    return paths


def _by_documents(axes: Axes, results: Mapping[str, Any]) -> bool:
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for cell in results["cells"]:
        if cell["documents"] is not None and cell["em"] is not None:
            lines.setdefault(f"{cell['row']}, {cell['dataset']}", []).append(cell)
    if len({cell["documents"] for cells in lines.values() for cell in cells}) < 2:
        return False
    for name, cells in lines.items():
        cells.sort(key=lambda cell: int(cell["documents"]))
        means = [cell["em"]["mean"] for cell in cells]
        ends = (
            [max(0.0, cell["em"]["mean"] - cell["em"]["low"]) for cell in cells],
            [max(0.0, cell["em"]["high"] - cell["em"]["mean"]) for cell in cells],
        )
        axes.errorbar(
            [cell["documents"] for cell in cells], means, yerr=ends, marker="o", markersize=3, capsize=2, label=name
        )
    axes.set_xscale("log", base=2)
    ticks = sorted({cell["documents"] for cells in lines.values() for cell in cells})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_xlabel("documents in the stream")
    axes.set_ylabel("EM")
    axes.set_ylim(0, 1.02)
    return True


def _funnel(axes: Axes, results: Mapping[str, Any]) -> bool:
    cells = [cell for cell in results["cells"] if cell.get("funnel") and cell["funnel"]["located"]]
    for cell in cells:
        counts = [cell["funnel"][stage] / cell["funnel"]["located"] for stage in _STAGES]
        axes.plot(range(len(_STAGES)), counts, marker="o", markersize=3, label=_name(results, cell))
    axes.set_xticks(range(len(_STAGES)), ["asked", "entered\nmemory", "there at\nthe end", "shown", "answered\nright"])
    axes.set_ylabel("fraction of questions")
    axes.set_ylim(0, 1.02)
    return bool(cells)


def _store_size(axes: Axes, results: Mapping[str, Any]) -> bool:
    cells = [cell for cell in results["cells"] if any(cell.get("store_size_by_step", ()))]
    for cell in cells:
        axes.plot(cell["store_size_by_step"], label=_name(results, cell))
    axes.set_xlabel("step")
    axes.set_ylabel("entries in the store (mean)")
    axes.set_ylim(bottom=0)
    return bool(cells)


def _actions(axes: Axes, training: Sequence[Mapping[str, Any]]) -> bool:
    updates = [entry for entry in training if entry.get("reward") is not None]
    drawn = False
    for action in _ACTIONS:
        rates = [(entry["step"], entry.get(f"actions/{action}") or 0.0) for entry in updates]
        if any(rate for _, rate in rates):
            axes.plot(*zip(*rates, strict=True), label=action)
            drawn = True
    axes.set_xlabel("update of the policy")
    axes.set_ylabel("actions per step")
    axes.set_ylim(bottom=0)
    return drawn


def _name(results: Mapping[str, Any], cell: Mapping[str, Any]) -> str:
    columns = {(other["dataset"], other["documents"]) for other in results["cells"]}
    return f"{cell['row']}, {column_name((cell['dataset'], cell['documents']))}" if len(columns) > 1 else cell["row"]
