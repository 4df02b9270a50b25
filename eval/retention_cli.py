"""``atommem retention``: list admission and retention rules, and check that one keeps its contract."""

from __future__ import annotations

import argparse

from atommem import plugins
from atommem.command_line import CommandParser
from atommem.rules.check import problems


def main(argv: list[str] | None = None) -> int:
    """Run ``atommem retention``; returns 1 if the checked rule breaks its contract."""
    parser = CommandParser(
        prog="atommem retention",
        description="Rules that admit and evict entries. docs/bounded_memory.md",
    )
    commands = parser.add_subparsers(required=True, metavar="check|list")
    check = commands.add_parser("check", help="Check that a rule keeps the contract of rules.")
    check.add_argument("retention", help="NAME, NAME(option=value), or package.module:Class.")
    check.add_argument("--admission", default="accept")
    check.set_defaults(run=_check)
    commands.add_parser("list", help="List the installed rules.").set_defaults(run=_list)
    args = parser.parse_args(argv)
    return int(args.run(args))


def _check(args: argparse.Namespace) -> int:
    found = problems(args.retention, args.admission)
    print("\n".join(found) or f"{args.retention} keeps its promises")
    return 1 if found else 0


def _list(args: argparse.Namespace) -> int:
    for setting in ("retention", "admission"):
        print(f"{setting}: {', '.join(plugins.names(f'atommem.{setting}'))}")
    return 0
