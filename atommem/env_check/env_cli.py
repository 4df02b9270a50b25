"""``atommem env``: which environments there are, and whether one keeps its promises."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from atommem.command_line import CommandParser, add_fields, names_of
from atommem.env_check import CHECKS, Finding, check_environment
from atommem.environment import EnvironmentConfig, environment_names, find_environment
from atommem.errors import AtomMemError, ConfigError

_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red"}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``atommem env``; returns 1 where a check failed.

    Raises:
        ConfigError: A setting is unknown or out of range.
    """
    parser = CommandParser(prog="atommem env", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    commands.add_parser("list", help="the environments that are installed")
    check = commands.add_parser(
        "check",
        help="play episodes with scripted policies, and say which promises are broken",
        description="Check an environment without a model. Its settings are flags: --NAME VALUE.",
    )
    check.add_argument("name", help="as in `atommem env list`, or package.module:Class")
    check.add_argument(
        "--data", metavar="FILE", help="tasks to play; without them only declarations are checked"
    )
    check.add_argument(
        "--tasks", type=int, default=3, help="play so many of them (default: %(default)s)"
    )
    check.add_argument("--seed", type=int, default=0, help="of what the policies write")
    given, flags = parser.parse_known_args(list(sys.argv[1:] if argv is None else argv))
    if flags and given.command == "list":
        parser.error(f"unrecognized arguments: {' '.join(flags)}")
    if given.command == "list":
        _print_list()
        return 0
    config = None
    if ":" not in given.name:
        find_environment(given.name)  # a name that is none is no environment to check
    if given.data is not None and not Path(given.data).exists():
        raise ConfigError(f"data is {given.data!r}: there is no such file.")
    try:
        settings = find_environment(given.name).config_class
    except (AtomMemError, ImportError, AttributeError):
        settings = None  # which the check says better
    if flags and settings is not None:
        config = read_settings(settings, given.name, flags)
    findings = asyncio.run(
        check_environment(given.name, config, given.data, most_tasks=given.tasks, seed=given.seed)
    )
    _print_findings(given.name, findings)
    return int(any(finding.level == "fail" for finding in findings))


def read_settings(
    kind: type[EnvironmentConfig], name: str, flags: Sequence[str]
) -> EnvironmentConfig:
    """Settings of an environment from ``--NAME VALUE``.

    Raises:
        ConfigError: A setting is unknown, or out of range.
    """
    parser = CommandParser(prog=f"atommem env check {name}")
    add_fields(parser, kind, but=("environment",))
    values, unknown = parser.parse_known_args(list(flags))
    if unknown:
        known = ", ".join(item for item in names_of(kind) if item != "environment")
        raise ConfigError(f"{' '.join(unknown)} is no setting of {name}: it has {known}.")
    return kind(**{**vars(values), "environment": name})


def _print_list() -> None:
    table = Table(box=None, show_header=False)
    for name in environment_names():
        try:
            kind = find_environment(name)
            told = (kind.__doc__ or "").strip().partition("\n")[0]
        except (AtomMemError, ImportError) as error:
            told = f"cannot be loaded: {error}"
        table.add_row(name, Text(told))
    Console(highlight=False, soft_wrap=True).print(table)


def _print_findings(name: str, findings: Sequence[Finding]) -> None:
    table = Table(title=f"environment {name}", title_justify="left")
    for heading in ("", "check", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        level = Text(finding.level, style=_STYLES[finding.level])
        found = finding.detail or CHECKS[finding.check]
        table.add_row(level, finding.check, Text(found), Text(finding.remedy))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160  # a log file need not wrap at 80 columns
    console.print(table)
    counts = {level: sum(finding.level == level for finding in findings) for level in _STYLES}
    console.print(", ".join(f"{count} {level}" for level, count in counts.items()))


if __name__ == "__main__":
    raise SystemExit(main())
