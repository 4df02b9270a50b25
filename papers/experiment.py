"""Shared by the experiments: command line, report, and the journal from which a run resumes."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from atommem import __version__
from atommem.arguments import Parser
from atommem.errors import AtomMemError, check_writable, format_error
from atommem.files import write_json, write_text

NOT_INPUTS = ("output_dir", "cache", "check")
"""Arguments that do not change results."""


def main(
    name: str,
    description: str | None,
    add_flags: Callable[[Parser], None],
    run: Callable[[argparse.Namespace, Journal], Report],
    argv: Sequence[str] | None = None,
) -> int:
    """Run an experiment; returns 0, 1 if a check fails under ``--check``, 2 for an error."""

    def command() -> int:
        parser = Parser(f"python -m papers.{name}", description)
        parser.add_argument("--check", action="store_true", help="Exit with 1 if a check fails.")
        written = "Write NAME.json, NAME.md."
        parser.add_argument("--output_dir", type=Path, metavar="FOLDER", help=written)
        parser.add_argument(
            "--cache",
            type=Path,
            default=Path("runs/papers"),
            metavar="FOLDER",
            help="Stores vectors, and results of an interrupted run (%(default)s).",
        )
        add_flags(parser)
        arguments = parser.parse_args(sys.argv[1:] if argv is None else list(argv))
        for flag in ("output_dir", "cache"):
            check_writable(flag, getattr(arguments, flag), folder=True)
        settings = {key: of for key, of in vars(arguments).items() if key not in NOT_INPUTS}
        with resumable(arguments.cache, name, settings) as journal:
            report = run(arguments, journal)
        if out := arguments.output_dir:
            write_json(out / f"{name}.json", {"holds": report.holds, **asdict(report)})
            write_text(out / f"{name}.md", report.markdown())
        print(report.markdown())
        print(json.dumps(report.verdict()))
        return int(arguments.check and not report.holds)

    return run_safely(name, command)


def run_safely(name: str, command: Callable[[], int]) -> int:
    """Return the command's exit status; print errors on one line."""
    try:
        return command()
    except (AtomMemError, OSError) as error:
        progress(f"papers.{name}: {format_error(error)}")
        return 2
    except KeyboardInterrupt:
        progress(f"\npapers.{name}: interrupted")
        return 130


def progress(text: str) -> None:
    """Print one line to standard error."""
    print(text, file=sys.stderr, flush=True)


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

    def table(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Value]], digits: int = 3
    ) -> None:
        """Add a table."""
        self.tables.append(Table(title, columns, rows, digits))

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


class Journal(dict[str, Any]):
    """JSON values by name, appended to a file (or in memory); a torn last line is dropped."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__()
        self.path = path
        if path is not None and path.is_file():
            content = path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            os.truncate(path, len(whole))
            self.update(map(json.loads, whole.splitlines()))

    def add(self, name: str, value: Any) -> Any:
        """Store a value; returns it as JSON reads it back (tuples become lists)."""
        line = json.dumps([name, value])
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file:
                file.write(line.encode() + b"\n")
                os.fsync(file.fileno())
        self[name] = json.loads(line)[1]
        return self[name]

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return the stored value of that name, or compute and store it."""
        return self[name] if name in self else self.add(name, compute())


@contextmanager
def resumable(folder: Path, name: str, settings: Mapping[str, Any]) -> Iterator[Journal]:
    """Open the journal of one computation; it is removed when the computation succeeds.

    The file's name depends on `settings`, and on size and time of files that they name. After a
    bug (an error that is not an `AtomMemError`), the journal is removed too.
    """
    inputs = [[key, value, _file_states(value)] for key, value in sorted(settings.items())]
    text = json.dumps([__version__, inputs], default=str).encode("utf-8", "replace")
    path = folder / f"{name}-{hashlib.sha256(text).hexdigest()[:16]}.jsonl"
    journal = Journal(path)
    if journal:
        progress(f"{path}: resuming with {len(journal)} results of an interrupted run")
    try:
        yield journal
    except (AtomMemError, OSError, KeyboardInterrupt):
        if journal:
            progress(f"{path}: {len(journal)} results stored. Run the same command to resume.")
        raise
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    path.unlink(missing_ok=True)


def _file_states(value: Any) -> list[tuple[str, int, int]]:
    if not isinstance(value, Path):
        return []
    patterns = ("*.json*", "*/*.json*")
    files = [file for pattern in patterns for file in value.glob(pattern)] or [value]
    states = [(str(file), file.stat()) for file in sorted(files) if file.is_file()]
    return [(name, state.st_size, state.st_mtime_ns) for name, state in states]
