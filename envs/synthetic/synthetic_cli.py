"""The command `atommem data synthetic`: write tasks of the synthetic world to a file."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from atommem.command_line import add_flags, given_flags
from atommem.config import check_least
from atommem.envs.provenance import write_provenance
from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.envs.task_files import check_name, save_tasks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options: one for each field of `WorldConfig`, and where to write what."""
    parser.add_argument("--n", type=int, required=True, help="Tasks to generate.")
    parser.add_argument("--seed", type=int, default=42, help="Seed of every draw (default: 42).")
    parser.add_argument("--out", type=Path, required=True, help="File to write: .parquet or .jsonl.")
    add_flags(parser.add_argument_group("world", "What the tasks are like."), WorldConfig)


def run(args: argparse.Namespace) -> int:
    """Generate, write, and say where the data came from.

    Raises:
        ConfigError: A knob is out of range, or the file's name is of no known kind.
        DataError: The file cannot be written.
    """
    config = WorldConfig(**given_flags(args, WorldConfig))
    check_least(args, n=1)
    check_name(args.out)
    tasks = tqdm(generate(config, args.n, args.seed), "generating", args.n, unit="task", disable=None)
    written = save_tasks(tasks, args.out)
    provenance = write_provenance(
        args.out, {"source": "synthetic", "n": args.n, "seed": args.seed, "world": asdict(config)}
    )
    print(f"{args.out}: {written} tasks; where they came from: {provenance}")
    return 0
