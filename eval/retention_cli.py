"""``atommem retention``: list admission and retention rules, or check one."""

from __future__ import annotations

import sys

from atommem import plugins
from atommem.arguments import Command, Parser, run_command
from atommem.rules.check import problems


def main(argv: list[str] | None = None) -> int:
    """Run ``atommem retention``; returns 1 if the checked rule breaks its contract."""
    commands = {
        "check": Command(_check, "check that a rule keeps the contract of rules"),
        "list": Command(_list, "list the installed rules"),
    }
    return run_command("atommem retention", commands, sys.argv[1:] if argv is None else argv)


def _check(argv: list[str]) -> int:
    parser = Parser("atommem retention check", "See docs/bounded_memory.md.")
    parser.add_argument("retention", help="NAME, NAME(option=value), or package.module:Class.")
    parser.add_argument("--admission", default="accept", help="Admission rule (%(default)s).")
    args = parser.parse_args(argv)
    found = problems(args.retention, args.admission)
    print("\n".join(found) or f"{args.retention} keeps its promises")
    return 1 if found else 0


def _list(argv: list[str]) -> int:
    Parser("atommem retention list").parse_args(argv)
    for setting in ("retention", "admission"):
        print(f"{setting}: {', '.join(plugins.names(f'atommem.{setting}'))}")
    return 0
