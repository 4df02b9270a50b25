"""The command `atommem demo`."""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from atommem.arguments import Parser
from atommem.demo.ranks import MOST, cores, ranks
from atommem.errors import ConfigError, check_writable


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``atommem demo``; return 0 when it ran to its end.

    Raises:
        AtomMemError: A setting is wrong.
    """
    args = _parser().parse_args(sys.argv[1:] if argv is None else argv)
    world = _chosen_world(args)
    if args.updates is not None and args.updates < 1:
        raise ConfigError(f"updates is {args.updates}: give at least 1.")
    processes = (
        (1 if args.quick else min(MOST, cores())) if args.processes is None else args.processes
    )
    if processes not in (1, 2, 4):
        raise ConfigError(f"processes is {processes}: give 1, 2 or 4, which share a batch evenly.")
    out = args.out or Path("runs") / "_".join(filter(None, ("demo", world)))
    check_writable("out", out, folder=True)
    _check_ours(out)
    with ranks(
        processes,
        [sys.executable, "-m", "atommem.cli", "demo", *(sys.argv[1:] if argv is None else argv)],
    ):
        return _run(args, world, out)


def _check_ours(out: Path) -> None:
    """Whether what the demo would replace in a folder is a demo's.

    Raises:
        ConfigError: A folder of another origin stands there (a checkout of this project has an
            ``eval``).
    """
    from atommem.demo.results import SUMMARY_FILE
    from atommem.demo.run import FOLDERS, PROGRESS_FILE

    found = [name for name in FOLDERS if (out / name).exists()]
    if found and not any((out / name).is_file() for name in (PROGRESS_FILE, SUMMARY_FILE)):
        raise ConfigError(
            f"out is {out}, which holds {', '.join(found)} of no demo, and would lose it: give a "
            "folder of its own."
        )


def _run(args: argparse.Namespace, world: str, out: Path) -> int:
    started = time.perf_counter()
    # Redirected to a file, the output should still come line by line.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    # Torch and TRL take seconds to import: not for --help.
    from atommem.demo.recipe import BOUNDED, FULL, INJECTED, LIMITED, MIXED, WEB, quick
    from atommem.demo.run import run_demo

    documents = {"": FULL, "limited": LIMITED, "bounded": BOUNDED, "blind": MIXED}
    recipe = {**documents, "web": WEB, "injected": INJECTED}[world]
    if args.quick:
        recipe = quick(recipe)
    if args.updates is not None:
        recipe = replace(recipe, updates=args.updates)
    run_demo(
        recipe,
        out,
        args.seed,
        Console(highlight=False, quiet=os.environ.get("RANK", "0") != "0"),
        started,
    )
    return 0


_WORLDS = {
    "web": "a site to browse: pages are visited by their links, and only memory stays",
    "injected": "that site with instructions of strangers on its pages, to be ignored",
    "limited": "a store of three entries in a world with more facts: deletes are needed",
    "bounded": "stores of 2, 3, 5, 8, 20 entries or no limit, drawn for each task",
    "blind": "half of the tasks show their question only after the text",
}


def _parser() -> Parser:
    parser = Parser(
        "atommem demo",
        "Make a tiny policy from nothing, show it faulty demonstrations, and let GRPO teach it to "
        "manage its memory in a synthetic world. Takes minutes on two cores; downloads nothing.",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="Output folder; an interrupted demo of the same settings continues, any other is "
        "replaced (default: runs/demo, runs/demo_limited, ...).",
    )
    for world, summary in _WORLDS.items():
        parser.add_argument(f"--{world}", action="store_true", help=f"World: {summary}.")
    parser.add_argument("--seed", type=int, default=0, help="Of weights, tasks, sampling (0).")
    parser.add_argument("--updates", type=int, help="Updates of GRPO (default: the recipe's).")
    parser.add_argument(
        "--processes",
        type=int,
        help="Processes that share the work: 1, 2 or 4 (default: two on two cores; --quick: one).",
    )
    parser.add_argument(
        "--quick", action="store_true", help="Run every part for a few seconds; teaches nothing."
    )
    return parser


def _chosen_world(args: argparse.Namespace) -> str:
    chosen = [world for world in _WORLDS if getattr(args, world)]
    if len(chosen) > 1:
        raise ConfigError(f"--{chosen[0]} and --{chosen[1]} exclude each other. Give one.")
    return chosen[0] if chosen else ""
