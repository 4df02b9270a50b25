"""The command `atommem data synthetic`: write tasks of the synthetic world to a file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from tqdm import tqdm

from atommem.envs.provenance import write_provenance
from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.envs.task_files import check_name, save_tasks
from atommem.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options: one for each field of `WorldConfig`, and where to write what."""
    parser.add_argument("--n", type=int, required=True, help="Tasks to generate.")
    parser.add_argument("--seed", type=int, default=42, help="Seed of every draw (default: 42).")
    parser.add_argument("--out", type=Path, required=True, help="File to write: .parquet or .jsonl.")
    group = parser.add_argument_group("world", "What the tasks are like.")
    for item in fields(WorldConfig):
        text: str = item.metadata["help"]
        name = f"--{item.name}"
        if isinstance(item.default, bool):
            group.add_argument(name, action="store_true", help=text)
        elif isinstance(item.default, tuple):
            low, high = item.default
            shown = f"{low}" if low == high else f"{low}-{high}"
            group.add_argument(
                name, type=_range, default=item.default, metavar="N or N-M", help=f"{text} (default: {shown})"
            )
        else:
            # capacity is the one field without a default: a number when it is given.
            kind: Callable[[str], Any] = int if item.default is None else type(item.default)
            default = "" if item.default is None else f" (default: {item.default})"
            group.add_argument(name, type=kind, default=item.default, help=text + default)


def run(args: argparse.Namespace) -> int:
    """Generate, write, and say where the data came from.

    Raises:
        ConfigError: A knob is out of range, or the file's name is of no known kind.
        DataError: The file cannot be written.
    """
    config = WorldConfig(**{item.name: getattr(args, item.name) for item in fields(WorldConfig)})
    if args.n < 1:
        raise ConfigError(f"n is {args.n}: give at least 1.")
    check_name(args.out)
    tasks = tqdm(generate(config, args.n, args.seed), "generating", args.n, unit="task", disable=None)
    written = save_tasks(tasks, args.out)
    provenance = write_provenance(
        args.out, {"source": "synthetic", "n": args.n, "seed": args.seed, "world": asdict(config)}
    )
    print(f"{args.out}: {written} tasks; where they came from: {provenance}")
    return 0


def _range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    try:
        return int(low), int(high or low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number or a range such as 1-4") from None
