"""``atommem data build``: long-document tasks from the files of a benchmark."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from atommem.command_line import CommandParser, number_range
from atommem.envs.benchmarks.build import BuildConfig, Pool, build_tasks
from atommem.envs.benchmarks.musique import MUSIQUE
from atommem.envs.benchmarks.overlap import read_asked
from atommem.envs.benchmarks.registry import BENCHMARKS, SPLITS, get_benchmark, with_aliases
from atommem.envs.benchmarks.rows import QARow
from atommem.envs.provenance import check_out, describe_file, write_provenance
from atommem.envs.task import Task
from atommem.envs.task_files import save_tasks
from atommem.errors import ConfigError, DataError


def main(argv: Sequence[str]) -> int:
    """Build a task file as the command line says; returns the exit status.

    Raises:
        AtomMemError: A setting is wrong, or a file is missing or damaged.
    """
    args = _parser().parse_args(argv)
    config = BuildConfig(
        args.docs,
        args.n,
        args.questions,
        args.seed,
        args.exclude_answer_documents,
        args.distractors,
        args.unanswerable,
    )
    benchmark = get_benchmark(args.benchmark)
    if args.aliases is not None:
        benchmark = with_aliases(benchmark, args.aliases)
    folders = args.input or [Path(os.environ.get("ATOMMEM_DATA") or "data")]
    files = [file for folder in folders for file in benchmark.find(args.split, folder)]
    check_out(
        args.out, [*files, *args.exclude, *([args.aliases] if args.aliases is not None else [])]
    )
    asked = [read_asked(file) for file in args.exclude]
    rows_of: dict[Path, int] = {}

    def rows() -> Iterator[QARow]:
        for file in files:
            print(f"reading {file}", file=sys.stderr)
            rows_of[file] = 0
            for row in benchmark.read(file):
                rows_of[file] += 1
                shared = [
                    questions.note(row) for questions in asked
                ]  # with each file, whatever the others say
                if not any(shared):
                    yield row
            if not rows_of[file]:
                raise DataError(
                    f"{file}: has no rows. Give one that has; one that was downloaded, get again."
                )

    if config.unanswerable and benchmark.name != MUSIQUE:
        raise ConfigError(
            f"unanswerable is given for {benchmark.name}; only {MUSIQUE} (Full) has such questions."
        )
    pool = Pool(rows(), config.unanswerable)
    if not args.drop_overlap:
        for questions in asked:
            questions.check()
    used: dict[str, int] = {"tasks": 0, "questions": 0, "documents": 0}
    tasks = build_tasks(pool, config, benchmark.name, args.split, args.workers)
    save_tasks(
        _counted(tqdm(tasks, "building", config.n, unit="task", disable=None), used), args.out
    )
    beside = write_provenance(
        args.out,
        {
            "command": ["atommem", "data", "build", *argv],
            "benchmark": benchmark.name,
            "split": args.split,
            **asdict(config),
            "inputs": [{**describe_file(file), "rows": rows_of[file]} for file in files],
            "aliases": None if args.aliases is None else describe_file(args.aliases),
            "excluded": [
                {**describe_file(q.path), "shared_questions": len(q.shared)} for q in asked
            ],
            "pool": {
                "questions": len(pool.questions),
                "documents": len(pool.documents),
                "rows_without_all_gold_documents": pool.skipped,
            },
            "counts": used,
        },
    )
    print(
        f"{args.out}: {used['tasks']} tasks with {used['questions']} questions, from {len(pool.questions)} questions "
        f"and {len(pool.documents)} documents{pool.skipped_note}; where it came from: {beside}"
    )
    return 0


def _counted(tasks: Iterable[Task], counts: dict[str, int]) -> Iterator[Task]:
    for task in tasks:
        counts["tasks"] += 1
        counts["questions"] += len(task.questions)
        counts["documents"] += len(task.documents)
        yield task


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="atommem data build",
        description="Build long-document tasks: the questions' gold documents, shuffled among distractors.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--benchmark", required=True, choices=list(BENCHMARKS), help="whose format the input has"
    )
    parser.add_argument(
        "--split", required=True, choices=SPLITS, help="which official file to look for in a folder"
    )
    parser.add_argument(
        "--input",
        action="append",
        type=Path,
        metavar="FILE_OR_FOLDER",
        help="the benchmark's file, or a folder that holds it (itself or in a folder with the benchmark's name); may "
        "be repeated; default: $ATOMMEM_DATA, or else the folder data",
    )
    parser.add_argument(
        "--aliases", type=Path, help="id_aliases.json of 2WikiMultihopQA: its names count as right"
    )
    parser.add_argument("--docs", type=int, default=200, help="documents of a task")
    parser.add_argument(
        "--questions",
        type=number_range,
        default=(1, 1),
        metavar="Q or Q-Q",
        help="questions of a task",
    )
    parser.add_argument("--n", type=int, required=True, help="tasks to build")
    parser.add_argument("--seed", type=int, default=42, help="seed of every draw")
    parser.add_argument("--out", type=Path, required=True, help="file to write: .parquet or .jsonl")
    parser.add_argument(
        "--distractors",
        default="pool",
        choices=("pool", "own"),
        help="pool: documents of other questions; own: the questions' own paragraphs first, as RULER and MemAgent do",
    )
    parser.add_argument(
        "--unanswerable",
        action="store_true",
        help="MuSiQue-Full: keep the questions that cannot be answered, in pairs with those that can",
    )
    parser.add_argument(
        "--exclude_answer_documents",
        action="store_true",
        help="keep out distractors that contain an answer (off: names are common, and published figures do not)",
    )
    parser.add_argument(
        "--exclude",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="an evaluation file whose questions the input must not share, in any format read here; may be repeated",
    )
    parser.add_argument(
        "--drop_overlap", action="store_true", help="leave shared questions out instead of refusing"
    )
    parser.add_argument(
        "--workers", type=int, default=min(4, os.cpu_count() or 1), help="processes"
    )
    return parser
