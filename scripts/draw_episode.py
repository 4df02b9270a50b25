"""Draw a policy's memory over an episode: scripts/draw_episode.py TRACE OUT.svg

README's picture is the first held-out episode of `scripts/demo`.
"""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.patches import FancyBboxPatch

from atommem.episode import Observation
from atommem.memory.log import Operation, Outcome
from atommem.trace import Trace, read_trace

COLORS = {
    "shown": "#eceff1",
    "scratchpad": "#fff3cd",
    "read": "#d7e8fa",
    "create": "#d8f0d8",
    "update": "#fbdcc4",
}
WIDTH = 21
"""Letters in a line of a cell."""


@dataclass
class Bar:
    """A text that stands from one step to another."""

    row: str
    kind: str
    text: str
    start: int
    end: int


def bars_of(trace: Trace) -> list[Bar]:
    """Bars of what each step showed, and of scratchpad, query and entries over time."""
    steps = trace.episode.steps
    bars = [
        Bar("shown", "shown", shown(step.observation), step.index, step.index + 1) for step in steps
    ]
    standing: dict[str, Bar] = {}
    for step in steps:
        for operation in step.operations:
            row = row_of(operation)
            if row is None or operation.outcome is not Outcome.APPLIED:
                continue
            if row in standing:
                bars.append(standing.pop(row))
                bars[-1].end = step.index + 1
            if operation.after:
                standing[row] = Bar(
                    row, operation.kind, operation.after, step.index + 1, len(steps)
                )
    return bars + list(standing.values())


def shown(observation: Observation) -> str:
    """The texts that are new at a step; the task's where there are none."""
    pieces = observation.stream or observation.task
    return " / ".join(
        value for piece in pieces for _, value in piece.walk() if isinstance(value, str)
    )


def row_of(operation: Operation) -> str | None:
    """Where an operation is drawn."""
    if operation.kind in ("scratchpad", "read"):
        return {"read": "query"}.get(operation.kind, operation.kind)
    return None if operation.entry_id is None else f"entry {operation.entry_id}"


def draw(trace: Trace, out: Path) -> None:
    """Write the picture; its format is that of the file's name."""
    bars = bars_of(trace)
    entries = sorted(
        {bar.row for bar in bars if bar.row.startswith("entry")},
        key=lambda row: int(row.split()[1]),
    )
    rows = ["shown", "scratchpad", "query", *entries]
    steps = trace.episode.steps
    figure, axes = plt.subplots(figsize=(1.9 * len(steps) + 0.9, 0.72 * len(rows) + 0.9))
    for bar in bars:
        if bar.end <= bar.start:
            continue
        place, length = rows.index(bar.row), bar.end - bar.start
        axes.add_patch(
            FancyBboxPatch(
                (bar.start + 0.03, place + 0.1),
                length - 0.06,
                0.8,
                boxstyle="round,pad=0,rounding_size=0.06",
                facecolor=COLORS[bar.kind],
                edgecolor="#90a4ae",
                linewidth=0.7,
            )
        )
        text = "\n".join(textwrap.wrap(bar.text, WIDTH * length, max_lines=3, placeholder=" ..."))
        axes.text(bar.start + 0.09, place + 0.56, text, va="center", fontsize=8)
        if bar.kind != "shown":
            axes.text(
                bar.start + 0.09, place + 0.14, bar.kind, va="top", fontsize=6, color="#607d8b"
            )
    names = [f"{step.index + 1}. {step.observation.label.split(',')[0]}" for step in steps]
    axes.set_xticks([step.index + 0.5 for step in steps], names, fontsize=8)
    axes.set_yticks([place + 0.5 for place in range(len(rows))], rows, fontsize=9)
    axes.set(xlim=(0, len(steps)), ylim=(len(rows), 0))
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    answer = ", ".join(str(answer) for answer in trace.episode.answers or ["none"])
    axes.set_xlabel(
        f"answer: {answer}    reward: {trace.episode.reward:g}", fontsize=9, loc="right"
    )
    figure.tight_layout()
    mpl.rcParams["svg.hashsalt"] = out.stem
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None, dpi=110)


def main() -> None:
    """Parse the command line, and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("out", type=Path, help="a picture: .svg, .png or .pdf")
    args = parser.parse_args()
    draw(read_trace(args.trace), args.out)
    print(args.out)


if __name__ == "__main__":
    main()
