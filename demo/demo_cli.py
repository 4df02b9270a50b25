"""The command `atommem demo`."""

import argparse
import multiprocessing
import os
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rich.console import Console

from atommem.arguments import Parser
from atommem.errors import AtomMemError, ConfigError, check_writable
from atommem.servers.vllm_process import free_port

_WORLDS = {
    "web": "a site to browse: pages are visited by their links, and only memory stays",
    "injected": "that site with instructions of strangers on its pages, to be ignored",
    "limited": "a store of three entries in a world with more facts: deletes are needed",
    "bounded": "stores of 2, 3, 5, 8, 20 entries or no limit, drawn for each task",
}
_MOST_RANKS = 2  # each needs its own core, and a third gains little


def main(argv: list[str]) -> int:
    parser = Parser(
        "atommem demo",
        "Make a tiny policy from nothing, show it faulty demonstrations, and let GRPO teach it to "
        "manage its memory in a synthetic world. Takes minutes on two cores; downloads nothing.",
    )
    folder = "Output folder; an earlier demo in it is replaced (default: runs/demo, "
    parser.add_argument("--output_dir", type=Path, help=f"{folder}runs/demo_limited, ...).")
    worlds = parser.add_mutually_exclusive_group()
    chosen: dict[str, Any] = {"action": "store_const", "dest": "world", "default": ""}
    for world, summary in _WORLDS.items():
        worlds.add_argument(f"--{world}", const=world, help=f"World: {summary}.", **chosen)
    parser.add_argument("--seed", type=int, default=0, help="Of weights, tasks, sampling (0).")
    shared = "Processes that share the work: 1, 2 or 4 (default: two on two cores; --quick: one)."
    parser.add_argument("--processes", type=int, help=shared)
    brief = "Run every part for a few seconds; teaches nothing."
    parser.add_argument("--quick", action="store_true", help=brief)
    args = parser.parse_args(argv)
    args.output_dir = args.output_dir or Path("runs", "_".join(filter(None, ("demo", args.world))))
    ranks = args.processes
    if ranks is None:
        ranks = 1 if args.quick else min(_MOST_RANKS, os.cpu_count() or 1)
    if ranks not in (1, 2, 4):
        raise ConfigError(f"processes={ranks}: give 1, 2 or 4, which share a batch evenly.")
    check_writable("output_dir", args.output_dir, folder=True)
    others = _start_others(ranks, args) if ranks > 1 else []
    try:
        _run(args)
    except RuntimeError as error:  # torch lost the connection to another rank, or our own
        for rank, other in enumerate(others, 1):
            other.join(1)
            if other.exitcode:
                raise AtomMemError(
                    f"process {rank} of the demo's {ranks} ended with status {other.exitcode} "
                    "(--processes 1 needs no other)."
                ) from error
        raise
    finally:
        for other in others:
            other.kill()
    return 0


def _start_others(ranks: int, args: argparse.Namespace) -> list[BaseProcess]:
    """Become rank 0 of processes on CPU that share every batch, as under `accelerate launch`."""
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "RANK": "0",
        "LOCAL_RANK": "0",
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
    }
    make = multiprocessing.get_context("spawn").Process
    others = [make(target=_run, args=(args, str(rank)), daemon=True) for rank in range(1, ranks)]
    for other in others:
        other.start()
    return [*others]


def _run(args: argparse.Namespace, rank: str = "") -> None:
    """Run the demo, in a process that was started for a `rank`, or in this one."""
    started = time.perf_counter()
    if rank:
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends it
    # Torch and TRL take seconds to import: not for --help.
    from atommem.demo.recipe import RECIPES, quick
    from atommem.demo.run import check_out, run_demo

    recipe = RECIPES[args.world]
    if args.quick:
        recipe = quick(recipe)
    is_main = os.environ.get("RANK", "0") == "0"
    if is_main:
        check_out(args.output_dir)
    console = Console(highlight=False, quiet=not is_main)
    run_demo(recipe, args.output_dir, args.seed, console, started)
    if args.quick:
        console.print("--quick only checks that the parts run; its policy has learned nothing.")
