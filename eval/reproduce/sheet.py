"""What a reproduction found: tables, checks that hold or not, and what to know about them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from atommem.eval.journal import Journal

Cell = str | int | float | None


@dataclass(frozen=True)
class Grid:
    """A table. Numbers that are not whole are shown with `digits`.

    Attributes:
        title: What it shows, and where the published numbers stand.
        columns: Headings.
        rows: One cell for each column; None where there is nothing.
        digits: Decimals of floats.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    digits: int = 3

    def texts(self) -> list[list[str]]:
        """The cells as they are shown."""
        return [[self._text(cell) for cell in row] for row in self.rows]

    def _text(self, cell: Cell) -> str:
        if cell is None:
            return "-"
        return f"{cell:.{self.digits}f}" if isinstance(cell, float) else str(cell)


@dataclass(frozen=True)
class Check:
    """One statement that ``--check`` decides on: what was found, and what was wanted."""

    name: str
    holds: bool
    found: str
    wanted: str


@dataclass
class Sheet:
    """All of one reproduction.

    Attributes:
        name: Of the command.
        source: The publication, and its code where there is some.
        tables, checks: As above, in the order shown.
        notes: How to read them: where paper and code differ, what the set-up cannot show.
    """

    name: str
    source: str
    tables: list[Grid] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether every check does; without any, nothing was held to anything."""
        return bool(self.checks) and all(check.holds for check in self.checks)

    def check(self, name: str, holds: bool, found: object, wanted: object) -> None:
        """Add one statement."""
        self.checks.append(Check(name, bool(holds), str(found), str(wanted)))

    def step(self, name: str, journal: Journal, work: Callable[[Sheet], None]) -> float:
        """Add what `work` finds, or what it found in a run that was interrupted; returns the seconds that it took."""

        def made() -> dict[str, Any]:
            began, part = time.perf_counter(), Sheet(self.name, self.source)
            work(part)
            return {**asdict(part), "seconds": time.perf_counter() - began}

        found = journal.once(name, made)
        self.tables += [Grid(**table) for table in found["tables"]]
        self.checks += [Check(**check) for check in found["checks"]]
        self.notes += found["notes"]
        return float(found["seconds"])

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {"holds": self.holds, **asdict(self)}

    def verdict(self) -> dict[str, Any]:
        """The one line of ``--check``: does it hold, and which statements do not."""
        failed = {
            check.name: f"{check.found}, wanted {check.wanted}"
            for check in self.checks
            if not check.holds
        }
        holds = (
            self.holds if self.checks else None
        )  # with a policy of one's own there is nothing to hold it to
        return {
            "reproduce": self.name,
            "holds": holds,
            "checks": len(self.checks),
            "failed": failed,
        }

    def print(self, console: Console) -> None:
        """Tables, checks and notes for the terminal."""
        for grid in self.tables:
            table = Table(title=grid.title, title_justify="left")
            for place, heading in enumerate(grid.columns):
                table.add_column(heading, justify="right" if place else "left")
            for row in grid.texts():
                table.add_row(*row)
            console.print(table, markup=False)
        for check in self.checks:
            word = "holds" if check.holds else "DOES NOT HOLD"
            console.print(
                f"{word}: {check.name}: {check.found} (wanted: {check.wanted})", markup=False
            )
        for note in self.notes:
            console.print(f"- {note}", markup=False)

    def markdown(self) -> str:
        """The same as Markdown."""
        parts = [f"# {self.name}\n\n{self.source}\n"]
        for grid in self.tables:
            lines = [f"| {' | '.join(grid.columns)} |", f"|{' --- |' * len(grid.columns)}"]
            lines += [f"| {' | '.join(row)} |" for row in grid.texts()]
            parts.append(f"## {grid.title}\n\n" + "\n".join(lines) + "\n")
        if self.checks:
            lines = [
                f"- {'holds' if c.holds else '**does not hold**'}: {c.name}: {c.found} (wanted: {c.wanted})"
                for c in self.checks
            ]
            parts.append("## Checks\n\n" + "\n".join(lines) + "\n")
        if self.notes:
            parts.append("## Notes\n\n" + "\n".join(f"- {note}" for note in self.notes) + "\n")
        return "\n".join(parts)
