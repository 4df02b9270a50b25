"""``atommem eval --suite``: all evaluations of a suite's file, and one report of them."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from atommem.arguments import Parser, pop_flags
from atommem.environment import DEFAULT_ENVIRONMENT
from atommem.errors import ConfigError, check_writable
from atommem.eval.console_report import interrupted
from atommem.eval.reporting.published import table_of
from atommem.eval.suites.board import Board
from atommem.eval.suites.cells import Cell, make_cells
from atommem.eval.suites.differences import differences
from atommem.eval.suites.estimate import estimate
from atommem.eval.suites.outcome import exit_status, report
from atommem.eval.suites.suite import TRAINED, Column, Suite
from atommem.eval.suites.suite_file import load_suite
from atommem.eval.suites.suite_run import run_cells
from atommem.eval.suites.task_cache import TaskCache


def main(argv: Sequence[str]) -> int:
    """Entry point of ``atommem eval --suite``.

    Returns:
        0; 2 when a cell could not run; 3 when more episodes of a cell failed than ``--max_failed_fraction`` allows;
        4 when the budget was spent before all had run; 130 after Ctrl-C.

    Raises:
        AtomMemError: A setting or file is wrong, or it is known beforehand that a cell cannot run.
    """
    parser = _parser()
    words, flags = pop_flags(argv, [action.dest for action in parser._actions])
    own = (word for name, values in words.items() for word in (f"--{name}", *values))
    given = parser.parse_args(list(own))
    _check(given, flags)
    console = Console(highlight=False, soft_wrap=True, stderr=True)
    whole = load_suite(given.suite)
    named = _policies(given.policies, whole)
    suite = whole.select(given.columns, given.rows)
    cache = TaskCache(
        given.data_cache, given.benchmarks, lambda text: console.print(text, markup=False)
    )
    left_out = [column for column in suite.columns if not cache.available(column)]
    if left_out:
        names = ", ".join(column.key for column in left_out)
        console.print(f"left out without --benchmarks: {names}", markup=False)
        suite = replace(
            suite, columns=tuple(column for column in suite.columns if column not in left_out)
        )
        if not suite.columns:
            raise ConfigError("no column is left: give --benchmarks, or choose other --columns.")
    if given.list:
        suite = suite.with_policies({row.policy: row.policy for row in suite.rows} | named)
        suite = replace(
            suite, settings={"policy": "POLICY", **suite.settings}
        )  # where none is named
        listed = make_cells(suite, flags, Path("."), given.seeds)
        _list_cells(listed)
        print(f"embedder: {_embedders(listed)}")
        print(estimate(listed).text(given.throughput))
        for difference in (
            differences(table_of(suite.paper), suite, listed) if suite.paper is not None else ()
        ):
            print(f"not as published: {difference}")
        return 0
    suite = suite.with_policies(named)
    cells = make_cells(suite, flags, given.out, given.seeds)
    console.print(f"embedder: {_embedders(cells)}", markup=False)
    budget = cells[0].evaluation.config.make_budget()
    tasks = cache.load(suite.columns, str(suite.settings.get("environment", DEFAULT_ENVIRONMENT)))

    def say_cost() -> None:
        console.print(estimate(cells, tasks).text(given.throughput), markup=False)

    try:
        asyncio.run(run_cells(cells, tasks, budget, Board(cells, console), say_cost))
    except KeyboardInterrupt:
        return interrupted(given.out)
    report(suite, cells, given.out, given.training)
    return exit_status(cells, budget)


def _parser() -> Parser:
    parser = Parser(
        "atommem eval",
        "Run all evaluations of a suite, and report them together. Every flag of atommem eval may "
        "be given too: it wins over the suite's settings, but not over a row's.",
        usage="atommem eval --suite FILE|NAME --out DIR [--SETTING VALUE ...]",
        epilog="Suites, their files and the report: docs/evaluation.md",
    )
    # The file may be missing in `--suite --help`.
    parser.add_argument(
        "--suite", type=Path, nargs="?", metavar="FILE", help="A YAML file, or a shipped name."
    )
    parser.add_argument(
        "--out", type=Path, help="Folder of runs and report; a partial suite continues."
    )
    parser.add_argument(
        "--benchmarks",
        type=Path,
        metavar="DIR",
        help="Folder of the benchmarks' official files: hotpotqa/, 2wikimultihopqa/, musique/.",
    )
    parser.add_argument(
        "--data_cache",
        type=Path,
        default=Path("runs/data"),
        metavar="DIR",
        help="Keeps task files that are built on first use (%(default)s).",
    )
    parser.add_argument(
        "--columns", nargs="+", metavar="NAME", help="Only these: hotpotqa, hotpotqa-200, ..."
    )
    parser.add_argument(
        "--rows", nargs="+", metavar="NAME", help="Only these: name, method, label."
    )
    parser.add_argument(
        "--policies",
        nargs="+",
        default=[],
        metavar="NAME=WHERE",
        help="Policies that rows name (base, memagent, ...): a folder, a hub name or a URL; "
        "--policy is `trained`.",
    )
    parser.add_argument(
        "--seeds", nargs="+", type=int, metavar="N", help="Sampling seeds, instead of the suite's."
    )
    parser.add_argument(
        "--training", type=Path, metavar="RUN", help="Training run whose action rates are plotted."
    )
    parser.add_argument(
        "--throughput",
        type=float,
        metavar="N",
        help="Tokens a second of all servers: adds hours to the estimate.",
    )
    parser.add_argument("--list", action="store_true", help="Only list the runs and their cost.")
    return parser


_INSTEAD = {
    "--data": "the suite's file names the data; choose from it with --columns",
    "--method": "the suite's file names the methods; choose from them with --rows",
    "--seed": "give --seeds",
    "--config": "the suite's file holds the settings",
}


def _check(given: argparse.Namespace, flags: Sequence[str]) -> None:
    for flag in flags:
        name = flag.partition("=")[0]
        if name in _INSTEAD:
            raise ConfigError(f"{name} is for a single evaluation: {_INSTEAD[name]}.")
    if given.suite is None:
        raise ConfigError(
            "--suite is given without its file: give a path, or a name such as smoke."
        )
    if given.out is None and not given.list:
        raise ConfigError("--out is missing: name the folder for cells and report, or give --list.")
    check_writable("out", given.out, folder=True)
    if given.benchmarks is not None and not given.benchmarks.is_dir():
        raise ConfigError(f"benchmarks is {given.benchmarks}: there is no such folder.")
    if given.throughput is not None and given.throughput <= 0:
        raise ConfigError(f"throughput is {given.throughput:g}: give tokens a second, above 0.")
    if given.seeds is not None and len(set(given.seeds)) < len(given.seeds):
        raise ConfigError(f"seeds is {given.seeds}: give different ones.")


def _policies(given: Sequence[str], suite: Suite) -> dict[str, str]:
    """What ``--policies`` names, by name: a misspelt one must not leave a row with what the file names.

    Raises:
        ConfigError: An item has no name, one that comes twice, or one that no row of the suite has.
    """
    known = {row.policy for row in suite.rows} - {"", TRAINED} | {*suite.policies}
    found: dict[str, str] = {}
    for item in given:
        name, _, where = item.partition("=")
        if not name or not where:
            raise ConfigError(f"policies has {item!r}: give NAME=WHERE, as base=Qwen/Qwen3-8B.")
        if name == TRAINED:
            raise ConfigError(f"policies has {item!r}: give --policy, which is `{TRAINED}`.")
        if name not in known:
            raise ConfigError(
                f"policies has {item!r}: the suite's rows name {', '.join(sorted(known)) or 'none'}."
            )
        if name in found:
            raise ConfigError(f"policies has {name}={found[name]} and {item}: give one of them.")
        found[name] = where
    return found


def _list_cells(cells: Sequence[Cell]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("row", "column", "seed", "episodes"):
        table.add_column(
            heading, justify="left" if heading in ("row", "column") else "right", no_wrap=True
        )
    known = 0
    for cell in cells:
        count = _episodes(cell.column, cell)
        known += count or 0
        table.add_row(
            cell.row.name, cell.column.key, str(cell.seed), "all" if count is None else str(count)
        )
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    more = (
        " and those of all tasks in files" if any(cell.column.n is None for cell in cells) else ""
    )
    console.print(f"{len(cells)} cells, {known:,} episodes{more}")


def _embedders(cells: Sequence[Cell]) -> str:
    """The embedder of all rows, or which rows have which."""
    rows: dict[str, dict[str, None]] = {}
    for cell in cells:
        rows.setdefault(cell.evaluation.run.embedder.name, {})[cell.row.name] = None
    if len(rows) == 1:
        return f"{next(iter(rows))} (all rows)"
    return "; ".join(f"{name} ({', '.join(of)})" for name, of in rows.items())


def _episodes(column: Column, cell: Cell) -> int | None:
    config = cell.evaluation.config
    counts = [count for count in (column.n, config.limit) if count is not None]
    return min(counts) * config.samples_per_task if counts else None
