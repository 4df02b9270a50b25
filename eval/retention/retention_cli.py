"""``atommem retention``: fit a scorer, check a rule, and the table of what every keeper keeps."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

from atommem import plugins
from atommem.arguments import Command, Parser, run_command
from atommem.envs.task_files import write_json
from atommem.errors import ConfigError, check_writable
from atommem.eval.journal import Journal, resumable, settings_of
from atommem.eval.retention.fitting import fit, save
from atommem.eval.retention.keeping import Embedded, add_embedder_flags, embedded, embedder_of
from atommem.eval.retention.table import CAPACITIES, RULES, Cell, fill, markdown
from atommem.eval.retention.turns import read_streams
from atommem.rules.check import problems


def main(argv: list[str] | None = None) -> int:
    """Run ``atommem retention``; returns the exit status (1: a rule breaks its contract).

    Raises:
        AtomMemError: A setting or a file is wrong.
    """
    commands = {
        "fit": Command(_fit, "fit the linear scorer on texts of which is known which were needed"),
        "table": Command(_table, "fill the table of rules and capacities"),
        "check": Command(_check, "check that a rule keeps the contract of rules"),
        "list": Command(_list, "list the rules that we ship"),
    }
    return run_command("atommem retention", commands, sys.argv[1:] if argv is None else argv)


def _data_parser(command: str) -> Parser:
    parser = Parser(f"atommem retention {command}")
    parser.add_argument(
        "data", type=Path, help="LoCoMo's file, or rows with stream, text and needed."
    )
    parser.add_argument("--out", type=Path, required=command == "fit", help="Result file (JSON).")
    add_embedder_flags(parser)
    return parser


async def _embedded(args: argparse.Namespace) -> list[Embedded]:
    return await embedded(read_streams(args.data), embedder_of(args))


def _fit(argv: list[str]) -> int:
    parser = _data_parser("fit")
    parser.add_argument("--exclude", nargs="*", default=[], help="Streams to leave out.")
    parser.add_argument("--with_embedding", action="store_true", help="Also use the vectors.")
    parser.add_argument("--ridge", type=float, default=1.0, help="L2 penalty (%(default)s).")
    args = parser.parse_args(argv)
    check_writable("out", args.out, folder=False)
    given = asyncio.run(_embedded(args))
    names = {each.stream.name for each in given}
    if unknown := set(args.exclude) - names:
        raise ConfigError(
            f"--exclude {' '.join(sorted(unknown))}: streams are {', '.join(sorted(names))}."
        )
    chosen = [each for each in given if each.stream.name not in args.exclude]
    weights = fit(chosen, embedding=args.with_embedding, ridge=args.ridge)
    save(weights, args.out)
    print(
        json.dumps({name: value for name, value in weights.items() if name != "vector"}, indent=1)
    )
    print(f'use it: --retention "linear(weights={args.out})"')
    return 0


def _table(argv: list[str]) -> int:
    parser = _data_parser("table")
    parser.add_argument("--capacities", type=int, nargs="+", default=list(CAPACITIES))
    parser.add_argument("--rules", nargs="+", default=list(RULES), help="By name, with options.")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path("runs/retention"),
        help="Keeps figures for a run that continues after an interruption.",
    )
    parser.add_argument(
        "--equal", choices=("entries", "words"), default="entries", help="Unit of capacities."
    )
    args = parser.parse_args(argv)
    check_writable("out", args.out, folder=False)
    check_writable("cache", args.cache, folder=True)

    async def filled(journal: Journal) -> dict[str, dict[str, Cell]]:
        return await fill(
            await _embedded(args), args.capacities, args.rules, equal=args.equal, journal=journal
        )

    def tell(text: str) -> None:
        print(text, file=sys.stderr)

    with resumable(args.cache, "table", settings_of(args), tell) as journal:
        table = asyncio.run(filled(journal))
    print("all evidence kept / any kept / evidence recall, means over questions\n")
    print(markdown(table))
    if args.out is not None:
        values = {
            name: {column: asdict(one) for column, one in row.items()}
            for name, row in table.items()
        }
        write_json(args.out, values)
    return 0


def _check(argv: list[str]) -> int:
    parser = Parser("atommem retention check")
    parser.add_argument("retention", help="NAME, NAME(option=value), or package.module:Class.")
    parser.add_argument("--admission", default="accept", help="Its partner (%(default)s).")
    args = parser.parse_args(argv)
    found = problems(args.retention, args.admission)
    print("\n".join(found) or f"{args.retention} keeps its promises")
    return 1 if found else 0


def _list(argv: list[str]) -> int:
    for setting in ("retention", "admission"):
        print(f"{setting}: {', '.join(plugins.names(f'atommem.{setting}'))}")
    return 0
