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

from atommem.command_line import CommandParser, check_writable
from atommem.demo.ranks import MOST, cores, ranks
from atommem.errors import ConfigError


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``atommem demo``; returns 0 when it ran to its end, whatever the policy learned.

    Raises:
        AtomMemError: A setting is wrong.
    """
    args = _parser().parse_args(sys.argv[1:] if argv is None else argv)
    if args.updates is not None and args.updates < 1:
        raise ConfigError(f"updates is {args.updates}: give at least 1.")
    processes = (
        (1 if args.quick else min(MOST, cores())) if args.processes is None else args.processes
    )
    if processes not in (1, 2, 4):
        raise ConfigError(f"processes is {processes}: give 1, 2 or 4, which share a batch evenly.")
    out = args.out or Path("runs") / "_".join(filter(None, ("demo", args.world)))
    check_writable("out", out, folder=True)
    _check_ours(out)
    with ranks(
        processes,
        [sys.executable, "-m", "atommem.cli", "demo", *(sys.argv[1:] if argv is None else argv)],
    ):
        return _run(args, out)


def _check_ours(out: Path) -> None:
    """Whether what the demo would replace in a folder is a demo's.

    Raises:
        ConfigError: A folder of another origin stands there (a checkout of this project has an ``eval``).
    """
    from atommem.demo.results import SUMMARY_FILE
    from atommem.demo.run import FOLDERS, PROGRESS_FILE

    found = [name for name in FOLDERS if (out / name).exists()]
    if found and not any((out / name).is_file() for name in (PROGRESS_FILE, SUMMARY_FILE)):
        raise ConfigError(
            f"out is {out}, which holds {', '.join(found)} of no demo, and would lose it: give a folder of its own."
        )


def _run(args: argparse.Namespace, out: Path) -> int:
    started = time.perf_counter()
    # Redirected to a file, the output should still come line by line.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    # Torch and TRL take seconds to import: not for --help.
    from atommem.demo.recipe import BOUNDED, FULL, INJECTED, LIMITED, MIXED, WEB, quick
    from atommem.demo.run import run_demo

    documents = {"": FULL, "limited": LIMITED, "bounded": BOUNDED, "blind": MIXED}
    recipe = {**documents, "web": WEB, "injected": INJECTED}[args.world]
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


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="atommem demo",
        description="Make a tiny policy from nothing, show it faulty demonstrations, and let GRPO teach it to manage "
        "its memory in a synthetic world. Takes some minutes on two cores; nothing is downloaded.",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="where to write; an interrupted demo of the same settings goes on, any other is replaced (default: "
        "runs/demo, runs/demo_limited, ...)",
    )
    which = parser.add_mutually_exclusive_group()
    for world, described in (
        ("web", "a site to browse: pages are visited by their links, and only memory stays"),
        (
            "injected",
            "that site with instructions of strangers on its pages, which the policy has to learn to ignore",
        ),
        (
            "limited",
            "a store of three entries in a world with more facts: the policy has to learn to delete as well",
        ),
        (
            "bounded",
            "stores of 2, 3, 5, 8, 20 entries or no limit, drawn for each task: one policy for every budget",
        ),
        (
            "blind",
            "half of the tasks show their question only when the text is over: the policy has to "
            "learn what to keep without knowing what for",
        ),
    ):
        which.add_argument(
            f"--{world}",
            dest="world",
            action="store_const",
            const=world,
            default="",
            help=described,
        )
    parser.add_argument(
        "--seed", type=int, default=0, help="of weights, tasks and sampling (%(default)s)"
    )
    parser.add_argument(
        "--updates", type=int, help="updates of GRPO (default: what the recipe says)"
    )
    parser.add_argument(
        "--processes",
        type=int,
        help="that share the work: 1, 2 or 4 (default: two, where there are two cores and it is not --quick)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="run every part for a few seconds; teaches nothing"
    )
    return parser
