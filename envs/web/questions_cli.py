"""``atommem data build --environment web``: tasks of questions that are asked of the web."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

from atommem.arguments import Parser, find_flag
from atommem.config import check_choice, check_least
from atommem.envs.benchmarks.multihop import BENCHMARKS
from atommem.envs.benchmarks.rows import QARow
from atommem.envs.benchmarks.web_questions import WEB_BENCHMARKS, listed_rows
from atommem.envs.task import Question, Task
from atommem.envs.task_files import check_out, describe_file, save_tasks, write_provenance
from atommem.errors import DataError


def is_web_benchmark(argv: Sequence[str]) -> bool:
    """Return whether a command line names a benchmark of the web, or asks for help.

    Raises:
        ConfigError: There is no such benchmark, with documents or without.
    """
    named = find_flag(argv, "benchmark")
    if named is None:
        return bool({"-h", "--help"}.intersection(argv))
    check_choice("benchmark", named, (*WEB_BENCHMARKS, *BENCHMARKS))
    return named in WEB_BENCHMARKS


def build_questions(argv: Sequence[str]) -> int:
    """Build a task file as the command line says; returns the exit status."""
    args = _parser().parse_args(list(argv))
    check_least(args, n=1)
    benchmark = WEB_BENCHMARKS[args.benchmark]
    files = benchmark.find(args.split, args.input or Path(os.environ.get("ATOMMEM_DATA") or "data"))
    check_out(args.out, files)
    rows = [row for file in files for row in benchmark.read(file)]
    if args.only is not None:
        rows = listed_rows(rows, args.only)
    if not rows:
        raise DataError(f"{args.out}: would have no tasks. Correct --only.")
    if args.n is not None and args.n < len(rows):
        places = Random(f"{args.seed}:questions").sample(range(len(rows)), args.n)
        rows = [rows[place] for place in sorted(places)]
    tasks = [_make_task(row, benchmark.name, args.split, args.start_page) for row in rows]
    beside = write_provenance(
        args.out,
        {
            "command": ["atommem", "data", "build", "--environment", "web", *argv],
            "benchmark": benchmark.name,
            "split": args.split,
            "inputs": [describe_file(file) for file in files],
            "only": None if args.only is None else describe_file(args.only),
            "seed": args.seed,
            "counts": {"tasks": save_tasks(tasks, args.out)},
        },
    )
    secret = sum(not row.answers for row in rows)
    print(f"{args.out}: {len(tasks)} tasks, {secret} without a known answer; provenance: {beside}")
    return 0


def _make_task(row: QARow, source: str, split: str, start_page: bool) -> Task:
    metadata = {"split": split}
    if start_page and "root_url" in row.metadata:
        metadata["start"] = row.metadata["root_url"]
    question = Question(row.question, row.answers, row.id, row.metadata)
    return Task(f"{source}-{split}-{row.id}", (question,), source=source, metadata=metadata)


def _parser() -> Parser:
    parser = Parser("atommem data build --environment web", __doc__)
    parser.add_argument("--benchmark", required=True, choices=list(WEB_BENCHMARKS))
    splits = {split for benchmark in WEB_BENCHMARKS.values() for split in benchmark.files}
    parser.add_argument("--split", required=True, choices=sorted(splits), help="Official file.")
    folder = "Default: $ATOMMEM_DATA, else the folder data."
    parser.add_argument("--input", type=Path, metavar="PATH", help=folder)
    parser.add_argument("--out", type=Path, required=True, help="A .parquet or .jsonl file.")
    parser.add_argument("--n", type=int, help="Tasks, drawn by the seed (default: all).")
    parser.add_argument("--seed", type=int, default=42, help="Seed of the draw (%(default)s).")
    listed = (
        "Only questions of this file, by id or text: a published subset, as GAIA's 103 of text."
    )
    parser.add_argument("--only", type=Path, metavar="FILE", help=listed)
    start = "Show WebWalkerQA's root page first."
    parser.add_argument("--start_page", action="store_true", help=start)
    return parser
