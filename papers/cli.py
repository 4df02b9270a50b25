"""Command line of the experiments: ``python -m papers.NAME``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from atommem.arguments import Parser
from atommem.envs.task_files import write_json, write_text
from atommem.errors import AtomMemError, ConfigError, check_writable, format_error
from papers.journal import resumable, settings_of

EXIT_CHECK_FAILED = 1


def main(name: str, argv: list[str] | None = None) -> int:
    """Run an experiment; returns 0, 1 if a check fails under ``--check``, 2 for an error."""
    return run_safely(name, lambda: run(name, sys.argv[1:] if argv is None else argv))


def run_safely(name: str, command: Callable[[], int]) -> int:
    """Return the command's exit status; print errors on one line."""
    try:
        return command()
    except (AtomMemError, OSError) as error:
        print(f"papers.{name}: {format_error(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\npapers.{name}: interrupted", file=sys.stderr)
        return 130


def run(name: str, argv: list[str]) -> int:
    """Run ``papers.NAME.experiment`` and print its report; raises AtomMemError."""
    experiment: Any = import_module(f"papers.{name}.experiment")
    parser = Parser(f"python -m papers.{name}", experiment.__doc__)
    parser.add_argument("--check", action="store_true", help="Exit with 1 if a check fails.")
    parser.add_argument("--json", action="store_true", help="Print the report as one JSON line.")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="Write NAME.json and NAME.md.")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path("runs/papers"),
        metavar="FOLDER",
        help="Stores vectors, and results of an interrupted run (%(default)s).",
    )
    experiment.add_flags(parser)
    arguments = parser.parse_args(argv)
    for flag in ("out", "cache"):
        check_writable(flag, getattr(arguments, flag), folder=True)
    seeds = getattr(arguments, "seeds", None) or 0
    if (min(seeds) if isinstance(seeds, list) else seeds) < 0:
        raise ConfigError(f"seeds={arguments.seeds}: must be 0 or more.")
    with resumable(arguments.cache, name, settings_of(arguments), print_progress) as journal:
        report = experiment.run(arguments, print_progress, journal)
    if arguments.out is not None:
        write_json(arguments.out / f"{name}.json", report.to_json())
        write_text(arguments.out / f"{name}.md", report.markdown())
    if arguments.json:
        print(json.dumps(report.to_json()))
    else:
        print(report.markdown())
        print(json.dumps(report.verdict()))
    return EXIT_CHECK_FAILED if arguments.check and not report.holds else 0


def print_progress(text: str) -> None:
    """Print one line to standard error."""
    print(text, file=sys.stderr, flush=True)
