"""Result of an experiment: tables, checks and notes, as text, JSON and Markdown."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from papers.journal import Journal

Value = str | int | float | None


@dataclass(frozen=True)
class Table:
    """A table; floats are shown with `digits` decimals and None as ``-``."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    digits: int = 3

    def markdown(self) -> str:
        """Render the table with its title as a heading."""
        lines = [f"| {' | '.join(self.columns)} |", f"|{' --- |' * len(self.columns)}"]
        lines += [f"| {' | '.join(map(self._format, row))} |" for row in self.rows]
        return f"## {self.title}\n\n" + "\n".join(lines) + "\n"

    def _format(self, value: Value) -> str:
        if value is None:
            return "-"
        return f"{value:.{self.digits}f}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Check:
    """One statement that ``--check`` tests."""

    name: str
    holds: bool
    found: str
    wanted: str


@dataclass
class Report:
    """Everything that one experiment found; `source` names the publication and its code."""

    name: str
    source: str
    tables: list[Table] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether there are checks and all of them hold."""
        return bool(self.checks) and all(check.holds for check in self.checks)

    def check(self, name: str, holds: bool, found: object, wanted: object) -> None:
        """Add a statement."""
        self.checks.append(Check(name, bool(holds), str(found), str(wanted)))

    def step(self, name: str, journal: Journal, run: Callable[[Report], None]) -> float:
        """Add the findings of `run`, or those stored by an interrupted run; returns CPU seconds."""

        def compute() -> dict[str, Any]:
            start, part = time.process_time(), Report(self.name, self.source)
            run(part)
            return {**asdict(part), "seconds": time.process_time() - start}

        found = journal.once(name, compute)
        self.tables += [Table(**table) for table in found["tables"]]
        self.checks += [Check(**check) for check in found["checks"]]
        self.notes += found["notes"]
        return float(found["seconds"])

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {"holds": self.holds, **asdict(self)}

    def verdict(self) -> dict[str, Any]:
        """Return the summary line: whether the checks hold (None without any), and failures."""
        failed = {
            check.name: f"{check.found}, wanted {check.wanted}"
            for check in self.checks
            if not check.holds
        }
        holds = self.holds if self.checks else None
        return {"paper": self.name, "holds": holds, "checks": len(self.checks), "failed": failed}

    def markdown(self) -> str:
        """Render tables, checks and notes."""
        parts = [f"# {self.name}\n\n{self.source}\n", *(table.markdown() for table in self.tables)]
        if self.checks:
            lines = [
                f"- {'holds' if check.holds else '**does not hold**'}: {check.name}: "
                f"{check.found} (wanted: {check.wanted})"
                for check in self.checks
            ]
            parts.append("## Checks\n\n" + "\n".join(lines) + "\n")
        if self.notes:
            parts.append("## Notes\n\n" + "\n".join(f"- {note}" for note in self.notes) + "\n")
        return "\n".join(parts)
