"""``atommem env``: list environments, or check one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from atommem.arguments import Command, Parser, given_flags, make, run_command
from atommem.env_check import CHECKS, Finding, check_environment
from atommem.environment import environment_names, find_environment
from atommem.errors import AtomMemError, ConfigError

_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``atommem env``; returns 1 if a check failed.

    Raises:
        ConfigError: A setting is unknown or out of range.
    """
    commands = {
        "list": Command(_list, "list the installed environments"),
        "check": Command(_check, "play episodes with scripted policies, and check the contract"),
    }
    return run_command("atommem env", commands, sys.argv[1:] if argv is None else argv)


def _check(argv: list[str]) -> int:
    parser = Parser("atommem env check", "Check an environment without a model.")
    parser.add_argument("name", help="As in `atommem env list`, or package.module:Class.")
    parser.add_argument("--data", metavar="FILE", help="Tasks to play; unset: only declarations.")
    parser.add_argument("--tasks", type=int, default=3, help="Tasks to play (%(default)s).")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the policies' texts.")
    name = argv[0] if argv and not argv[0].startswith("-") else ""
    settings = None
    if name:
        try:
            settings = find_environment(name).config_class
            parser.add_settings(f"environment {name}", settings, leave_out=["environment"])
        except (AtomMemError, ImportError, AttributeError, TypeError):
            if ":" not in name:
                raise
            settings = None  # the check reports it
    given = parser.read(argv)
    if given.data is not None and not Path(given.data).exists():
        raise ConfigError(f"data={given.data}: no such file. Give a task file.")
    config = None
    if settings is not None and given_flags(argv, given).keys() - {"data", "tasks", "seed"}:
        config = make(settings, {**vars(given), "environment": name})
    findings = asyncio.run(
        check_environment(name, config, given.data, most_tasks=given.tasks, seed=given.seed)
    )
    _print_findings(name, findings)
    return int(any(finding.level == "fail" for finding in findings))


def _list(argv: list[str]) -> int:
    Parser("atommem env list").parse_args(argv)
    table = Table(box=None, show_header=False)
    for name in environment_names():
        try:
            summary = (find_environment(name).__doc__ or "").strip().partition("\n")[0]
        except (AtomMemError, ImportError) as error:
            summary = f"cannot be loaded: {error}"
        table.add_row(name, Text(summary))
    Console(highlight=False, soft_wrap=True).print(table)
    return 0


def _print_findings(name: str, findings: Sequence[Finding]) -> None:
    table = Table(title=f"environment {name}", title_justify="left")
    for heading in ("", "check", "found", "fix"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        level = Text(finding.level, style=_STYLES[finding.level])
        found = finding.detail or CHECKS[finding.check]
        table.add_row(level, finding.check, Text(found), Text(finding.remedy))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160  # a log file need not wrap
    console.print(table)
    counts = {level: sum(finding.level == level for finding in findings) for level in _STYLES}
    console.print(", ".join(f"{count} {level}" for level, count in counts.items()))
