"""``atommem retention``: fit a scorer, check a rule, and the table of what every keeper keeps."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

from atommem import plugins
from atommem.command_line import CommandParser, check_writable
from atommem.envs.task_files import write_json
from atommem.errors import ConfigError
from atommem.eval.journal import Journal, resumable, settings_of
from atommem.eval.retention.fitting import fit, save
from atommem.eval.retention.keeping import Embedded, add_embedder_flags, embedded, embedder_of
from atommem.eval.retention.table import CAPACITIES, RULES, Cell, fill, markdown
from atommem.eval.retention.turns import read_streams
from atommem.rules.check import problems


def main(argv: list[str] | None = None) -> int:
    """Run ``atommem retention ...``; returns the exit status (1: a rule breaks a promise).

    Raises:
        AtomMemError: A setting or a file is wrong.
    """
    args = _parser().parse_args(argv)
    check_writable("out", getattr(args, "out", None), folder=False)
    check_writable("cache", getattr(args, "cache", None), folder=True)
    return int(args.run(args))


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="atommem retention", description="Rules that keep and forget. docs/retention.md"
    )
    commands = parser.add_subparsers(required=True, metavar="fit|table|check|list")
    for name, run, about in (
        ("fit", _fit, "Fit the linear scorer on texts of which is known which were needed."),
        (
            "table",
            _table,
            "What every keeper has left at every capacity, scorers fitted on the other streams.",
        ),
    ):
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument(
            "data", type=Path, help="LoCoMo's file, or rows with stream, text and needed."
        )
        add_embedder_flags(command)
        command.add_argument(
            "--out", type=Path, help="Where the result goes (JSON).", required=name == "fit"
        )
        command.set_defaults(run=run)
        if name == "fit":
            command.add_argument(
                "--exclude", nargs="*", default=(), help="Streams to leave out: those to try it on."
            )
            command.add_argument(
                "--with_embedding", action="store_true", help="Weigh the numbers of vectors too."
            )
            command.add_argument(
                "--ridge", type=float, default=1.0, help="Strength of the L2 penalty."
            )
        else:
            command.add_argument("--capacities", type=int, nargs="+", default=CAPACITIES)
            command.add_argument("--rules", nargs="+", default=RULES, help="By name, with options.")
            command.add_argument(
                "--cache",
                type=Path,
                default=Path("runs/retention"),
                help="Folder that keeps figures for a run that goes on after an interruption.",
            )
            command.add_argument(
                "--equal", choices=("entries", "words"), default="entries", help="What is limited."
            )
    check = commands.add_parser("check", help="Does a rule keep what every rule promises?")
    check.add_argument("retention", help="NAME, NAME(option=value), or package.module:Class.")
    check.add_argument("--admission", default="accept")
    check.set_defaults(run=_check)
    commands.add_parser("list", help="The rules that we bring.").set_defaults(run=_list)
    return parser


async def _embedded(args: argparse.Namespace) -> list[Embedded]:
    return await embedded(read_streams(args.data), embedder_of(args))


def _fit(args: argparse.Namespace) -> int:
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


def _table(args: argparse.Namespace) -> int:
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


def _check(args: argparse.Namespace) -> int:
    found = problems(args.retention, args.admission)
    print("\n".join(found) or f"{args.retention} keeps its promises")
    return 1 if found else 0


def _list(args: argparse.Namespace) -> int:
    for setting in ("retention", "admission"):
        print(f"{setting}: {', '.join(plugins.names(f'atommem.{setting}'))}")
    return 0
