"""The command `atommem demo`."""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

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
_PATIENCE = 20.0  # seconds for the others to end after the first


def main(argv: list[str] | None = None) -> int:
    """Run ``atommem demo``; returns the exit status."""
    args = _parser().parse_args(sys.argv[1:] if argv is None else argv)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    default = 1 if args.quick else min(_MOST_RANKS, cores or 1)
    ranks = default if args.processes is None else args.processes
    if ranks not in (1, 2, 4):
        raise ConfigError(f"processes={ranks}: give 1, 2 or 4, which share a batch evenly.")
    if args.updates is not None and args.updates < 1:
        raise ConfigError(f"updates={args.updates}: give at least 1.")
    check_writable("out", _out(args), folder=True)
    with _other_ranks(ranks, args):
        _run(args)
    return 0


@contextmanager
def _other_ranks(count: int, args: argparse.Namespace) -> Iterator[None]:
    """Be rank 0 of `count` processes on CPU that share every batch, as `accelerate launch` does.

    Raises:
        AtomMemError: Another process failed.
    """
    if count == 1:
        yield
        return
    before = dict(os.environ)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
    shared |= {"LOCAL_WORLD_SIZE": str(count), "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    os.environ.update(shared, RANK="0", LOCAL_RANK="0")
    context = multiprocessing.get_context("spawn")
    others: list[multiprocessing.process.BaseProcess] = []
    try:
        for rank in range(1, count):
            others.append(context.Process(target=_run_rank, args=(rank, args), daemon=True))
            others[-1].start()
        yield
        import torch

        torch.distributed.destroy_process_group()
        for other in others:
            other.join(_PATIENCE)
    except RuntimeError as error:  # torch lost the connection to another rank, or our own
        for rank, other in enumerate(others, 1):
            other.join(1)
            if other.exitcode:
                raise AtomMemError(
                    f"process {rank} of the demo's {count} ended with status {other.exitcode} "
                    "(--processes 1 needs no other)."
                ) from error
        raise
    finally:
        for other in others:
            other.kill()
        os.environ.clear()
        os.environ.update(before)


def _run_rank(rank: int, args: argparse.Namespace) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    _run(args)


def _run(args: argparse.Namespace) -> None:
    started = time.perf_counter()
    # Redirected to a file, the output should still come line by line.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    # Torch and TRL take seconds to import: not for --help.
    from atommem.demo.recipe import BOUNDED, FULL, INJECTED, LIMITED, WEB, quick
    from atommem.demo.run import check_out, run_demo

    recipes = {"": FULL, "limited": LIMITED, "bounded": BOUNDED, "web": WEB, "injected": INJECTED}
    recipe = recipes[_world(args)]
    if args.quick:
        recipe = quick(recipe)
    if args.updates is not None:
        recipe = replace(recipe, updates=args.updates)
    is_main = os.environ.get("RANK", "0") == "0"
    out = _out(args)
    if is_main:
        check_out(out)
    run_demo(recipe, out, args.seed, Console(highlight=False, quiet=not is_main), started)


def _world(args: argparse.Namespace) -> str:
    chosen = [world for world in _WORLDS if getattr(args, world)]
    if len(chosen) > 1:
        raise ConfigError(f"--{chosen[0]} and --{chosen[1]} exclude each other. Give one.")
    return chosen[0] if chosen else ""


def _out(args: argparse.Namespace) -> Path:
    return args.out or Path("runs") / "_".join(filter(None, ("demo", _world(args))))


def _parser() -> Parser:
    parser = Parser(
        "atommem demo",
        "Make a tiny policy from nothing, show it faulty demonstrations, and let GRPO teach it to "
        "manage its memory in a synthetic world. Takes minutes on two cores; downloads nothing.",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="Output folder; an earlier demo in it is replaced (default: runs/demo, "
        "runs/demo_limited, ...).",
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
