"""The command `atommem data convert`: a benchmark whose rows are ready tasks, as a task file."""

from __future__ import annotations

import argparse
from itertools import chain, islice
from pathlib import Path

from atommem.envs.benchmarks.conversations import QUESTIONS
from atommem.envs.benchmarks.locomo import read_locomo, read_wording
from atommem.envs.provenance import check_out, describe_file, write_provenance
from atommem.envs.task_files import check_name, iter_tasks, save_tasks
from atommem.errors import ConfigError, DataError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("file", type=Path, help="of LoCoMo, LongMemEval, MemoryAgentBench, BEAM or MemAgent")
    parser.add_argument("--out", type=Path, required=True, help="file to write: .parquet or .jsonl")
    parser.add_argument(
        "--wording",
        metavar="official|FILE",
        help="LoCoMo: ask as its authors do, in our words or in those of a YAML file (docs/data.md)",
    )
    parser.add_argument("--questions", type=int, help=f"LoCoMo: questions of a task (default: {QUESTIONS})")


def run(args: argparse.Namespace) -> int:
    """Write the file; returns the exit status.

    Raises:
        AtomMemError: A setting is wrong, or the file cannot be read or is none of these.
    """
    check_name(args.out)
    check_out(args.out, [args.file])
    if args.wording is None and args.questions is None:
        tasks = iter_tasks(args.file)
    else:
        if args.questions is not None and args.questions < 1:
            raise ConfigError(f"questions is {args.questions}: give at least 1.")
        wording = None if args.wording is None else read_wording(args.wording)
        tasks = read_locomo(args.file, args.questions or QUESTIONS, wording)
    tasks = iter(tasks)
    first = list(islice(tasks, 1))  # before an earlier file of that name is replaced
    if not first:
        raise DataError(f"{args.file}: has no rows. Get the file again, or give another one.")
    count = save_tasks(chain(first, tasks), args.out)
    settings = {"wording": args.wording, "questions": args.questions, "input": describe_file(args.file)}
    beside = write_provenance(args.out, {"command": "atommem data convert", **settings})
    print(f"{args.out}: {count} tasks; where it came from: {beside}")
    return 0
