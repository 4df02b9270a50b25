"""How far a suite is: a live table at a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from atommem.eval.reporting.scores import label, main_label
from atommem.eval.suites.cells import Cell

_LINE_EVERY = 30.0
"""Seconds between two lines of progress where there is no terminal."""
_STYLES = {
    "waiting": "dim",
    "running": "bold",
    "done": "green",
    "stopped": "yellow",
    "impossible": "red",
}


class Board:
    """Shows the cells of a run while they go. A context manager.

    Args:
        cells: In the order in which they run.
        console: Where to show them.
    """

    def __init__(self, cells: Sequence[Cell], console: Console) -> None:
        self._cells = cells
        self._console = console
        self._started = time.monotonic()
        self._line_at = self._started + _LINE_EVERY
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(
                console=console, get_renderable=self.render, refresh_per_second=2, transient=True
            )

    def __enter__(self) -> Board:
        self._started = time.monotonic()
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, cell: Cell) -> None:
        """A cell has begun or ended."""
        if self._live is None:
            self._print(cell)
        elif cell.state == "impossible":
            self._console.print(f"{cell.name}: {cell.error}", style="red", markup=False)

    def tick(self) -> None:
        """An episode has ended."""
        if self._live is None and time.monotonic() >= self._line_at:
            self._line_at = time.monotonic() + _LINE_EVERY
            for cell in self._cells:
                if cell.state == "running":
                    self._print(cell)

    def render(self) -> Group:
        """The cells around those that run, and all of them in one line."""
        table = Table(box=None, pad_edge=False)
        score = main_label({"metric": cell.metric} for cell in self._cells)
        for heading in ("row", "column", "seed", "done", "failed", score, "left"):
            table.add_column(
                heading, justify="left" if heading in ("row", "column") else "right", no_wrap=True
            )
        shown = self._window(max(3, self._console.height - 4))
        for cell in shown:
            table.add_row(
                cell.row.name,
                cell.column.key,
                str(cell.seed),
                f"{cell.done}/{cell.total}",
                Text(str(cell.failed), "bold red" if cell.failed else ""),
                "-" if cell.score is None else f"{cell.score:.3f}",
                _state(cell, self._left(cell)),
                style=_STYLES[cell.state],
            )
        return Group(table, Text(self.summary(), "bold"))

    def summary(self) -> str:
        """All cells in one line."""
        ended = sum(cell.state in ("done", "stopped", "impossible") for cell in self._cells)
        done, total = (
            sum(cell.done for cell in self._cells),
            sum(cell.total for cell in self._cells),
        )
        failed = sum(cell.failed for cell in self._cells)
        parts = [self._left(cell) for cell in self._cells if cell.state in ("waiting", "running")]
        known = [part for part in parts if part is not None]
        left = sum(known) if known and len(known) == len(parts) else None
        return (
            f"{ended} of {len(self._cells)} cells, {done} of {total} episodes, {failed} failed"
            f"{'' if left is None else f', {duration(left)} left'}"
        )

    def _left(self, cell: Cell) -> float | None:
        return seconds_left(cell, self._cells, time.monotonic() - self._started)

    def _window(self, height: int) -> Sequence[Cell]:
        """As many cells as fit, from a little before the first that has not ended."""
        if len(self._cells) <= height:
            return self._cells
        first = next(
            (i for i, cell in enumerate(self._cells) if cell.state in ("waiting", "running")), 0
        )
        start = min(max(0, first - 2), len(self._cells) - height)
        return self._cells[start : start + height]

    def _print(self, cell: Cell) -> None:
        score = "" if cell.score is None else f", {label(cell.metric)} {cell.score:.3f}"
        failed = f", {cell.failed} failed" if cell.failed else ""
        state = _state(cell, self._left(cell))
        self._console.print(
            f"{cell.name}: {cell.done}/{cell.total}{failed}{score}, {state}", markup=False
        )
        if cell.state != "running":
            self._console.print(f"  {self.summary()}", markup=False)


def seconds_left(cell: Cell, cells: Sequence[Cell], elapsed: float) -> float | None:
    """How long the rest of `cell` takes; None where nothing is known yet.

    An episode is taken to cost what those of the cell did so far, else those of its row, else all; and `elapsed`
    seconds have brought what all of them cost, running side by side.
    """
    spent = sum(other.spent for other in cells)
    if not cell.left or not spent:
        return None if cell.left else 0.0
    pools = ([cell], [other for other in cells if other.row == cell.row], cells)
    pool = next(pool for pool in pools if any(other.ran for other in pool))
    mean = sum(other.spent for other in pool) / sum(other.ran for other in pool)
    return cell.left * mean * elapsed / spent


def duration(seconds: float) -> str:
    """Like ``1:05:09`` or ``5:09``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _state(cell: Cell, left: float | None) -> str:
    if cell.state == "running" and left is not None:
        return f"{duration(left)} left"
    return {"impossible": f"cannot run: {cell.error}"}.get(cell.state, cell.state)
