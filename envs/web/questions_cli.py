"""``atommem data build --environment web``: tasks of questions that are asked of the web."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from atommem.arguments import Parser, find_flag
from atommem.config import check_choice, check_least
from atommem.envs.benchmarks.registry import BENCHMARKS
from atommem.envs.benchmarks.rows import QARow
from atommem.envs.benchmarks.web_questions import WEB_BENCHMARKS, read_asked
from atommem.envs.task import Question, Task
from atommem.envs.task_files import check_out, describe_file, save_tasks, write_provenance
from atommem.errors import ConfigError, DataError


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


def main(argv: Sequence[str]) -> int:
    """Build a task file as the command line says; returns the exit status."""
    args = _parser().parse_args(list(argv))
    check_least(args, n=1, questions=1)
    benchmark = WEB_BENCHMARKS[args.benchmark]
    files = benchmark.find(args.split, args.input or Path(os.environ.get("ATOMMEM_DATA") or "data"))
    check_out(args.out, files)
    rows = [row for file in files for row in benchmark.read(file)]
    kept = [row for row in rows if all(_has(row, condition) for condition in args.where)]
    if args.only is not None:
        listed = read_asked(args.only)
        kept = [row for row in kept if listed.has(row)]
    tasks = _make_tasks(kept, benchmark.name, args)
    save_tasks(tasks, args.out)
    asked = sum(len(task.questions) for task in tasks)
    beside = write_provenance(
        args.out,
        {
            "command": ["atommem", "data", "build", "--environment", "web", *argv],
            "benchmark": benchmark.name,
            "split": args.split,
            "inputs": [describe_file(file) for file in files],
            "only": None if args.only is None else describe_file(args.only),
            "where": args.where,
            "questions": args.questions,
            "seed": args.seed,
            "counts": {"tasks": len(tasks), "questions": asked},
        },
    )
    secret = sum(not row.answers for row in kept)
    with_file = sum(bool(row.metadata.get("file_name")) for row in kept)
    print(
        f"{args.out}: {len(tasks)} tasks with {asked} of {len(rows)} questions, {secret} of them "
        f"without a known answer; {with_file} need a file (--where file_name= leaves these out); "
        f"provenance: {beside}"
    )
    return 0


def _has(row: QARow, condition: str) -> bool:
    name, separator, value = condition.partition("=")
    if not separator or name not in row.metadata:
        names = ", ".join(row.metadata)
        raise ConfigError(f"where={condition}: write NAME=VALUE; {row.source} has {names}.")
    return str(row.metadata[name]) == value


def _make_tasks(rows: list[QARow], source: str, args: Any) -> list[Task]:
    """Return tasks of ``--questions`` questions each; more than one are drawn at random."""
    size, count = args.questions, len(rows) // args.questions
    order = list(range(len(rows)))
    if size > 1 or args.n is not None:
        order = Random(f"{args.seed}:questions").sample(order, len(order))
        count = min(args.n or count, count)
    if not count:
        raise DataError(f"questions={size}: {len(rows)} are left. Correct --where or --only.")
    groups = [order[start * size : (start + 1) * size] for start in range(count)]
    tasks = []
    for number, group in enumerate(sorted(groups) if size == 1 else groups):
        first = rows[group[0]]
        metadata = {"split": args.split}
        if args.start_page and "root_url" in first.metadata:
            metadata["start"] = first.metadata["root_url"]
        questions = tuple(
            Question(row.question, row.answers, row.id, row.metadata)
            for row in (rows[at] for at in group)
        )
        name = f"{source}-{args.split}-{first.id if size == 1 else f'{number:05d}'}"
        tasks.append(Task(name, questions, source=source, metadata=metadata))
    return tasks


def _parser() -> Parser:
    parser = Parser("atommem data build --environment web", __doc__)
    parser.add_argument("--benchmark", required=True, choices=list(WEB_BENCHMARKS))
    splits = {split for benchmark in WEB_BENCHMARKS.values() for split in benchmark.files}
    parser.add_argument("--split", required=True, choices=sorted(splits), help="Official file.")
    parser.add_argument(
        "--input", type=Path, metavar="PATH", help="Default: $ATOMMEM_DATA, else the folder data."
    )
    parser.add_argument("--out", type=Path, required=True, help="A .parquet or .jsonl file.")
    parser.add_argument("--n", type=int, help="Tasks, drawn by the seed (default: all).")
    parser.add_argument("--questions", type=int, default=1, help="Questions of a task (1).")
    parser.add_argument("--seed", type=int, default=42, help="Seed of every draw (%(default)s).")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="Only questions with this attribute: level=1, lang=zh, file_name= (none); may be "
        "repeated.",
    )
    parser.add_argument(
        "--only",
        type=Path,
        metavar="FILE",
        help="Only questions of this file, by id or text (a published subset, such as GAIA's 103 "
        "of text alone).",
    )
    parser.add_argument(
        "--start_page", action="store_true", help="Show WebWalkerQA's root page first."
    )
    return parser
