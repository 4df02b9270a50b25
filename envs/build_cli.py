"""``atommem data build``: long-document tasks from the files of a benchmark."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from atommem.arguments import NumberRange, Parser
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
    """Build a task file; returns the exit status.

    Raises:
        AtomMemError: A setting is wrong, or a file is missing or damaged.
    """
    args = _parser().parse_args(list(argv))
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


def _parser() -> Parser:
    parser = Parser(
        "atommem data build",
        "Build long-document tasks: the gold documents of questions, shuffled among distractors.",
    )
    parser.add_argument("--benchmark", required=True, choices=list(BENCHMARKS), help="Its format.")
    parser.add_argument("--split", required=True, choices=SPLITS, help="Official file to look for.")
    parser.add_argument(
        "--input",
        action="extend",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="The benchmark's file, or a folder that holds it (itself or in a folder named like the "
        "benchmark); may be repeated. Default: $ATOMMEM_DATA, else the folder data.",
    )
    parser.add_argument(
        "--aliases", type=Path, help="id_aliases.json of 2WikiMultihopQA; its names are right too."
    )
    parser.add_argument("--docs", type=int, default=200, help="Documents of a task (%(default)s).")
    parser.add_argument(
        "--questions",
        type=NumberRange.parse,
        default=NumberRange((1, 1)),
        metavar="N|N-M",
        help="Questions of a task (1).",
    )
    parser.add_argument("--n", type=int, required=True, help="Tasks to build.")
    parser.add_argument("--seed", type=int, default=42, help="Seed of every draw (%(default)s).")
    parser.add_argument("--out", type=Path, required=True, help="A .parquet or .jsonl file.")
    parser.add_argument(
        "--distractors",
        default="pool",
        choices=("pool", "own"),
        help="pool: documents of other questions; own: first the questions' own paragraphs, as "
        "RULER and MemAgent do (%(default)s).",
    )
    parser.add_argument(
        "--unanswerable",
        action="store_true",
        help="MuSiQue-Full: keep unanswerable questions, paired with answerable ones.",
    )
    parser.add_argument(
        "--exclude_answer_documents",
        action="store_true",
        help="Leave out distractors that contain an answer (published figures do not).",
    )
    parser.add_argument(
        "--exclude",
        action="extend",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="An evaluation file that the input must not share questions with; may be repeated.",
    )
    parser.add_argument(
        "--drop_overlap", action="store_true", help="Leave out shared questions, not refuse them."
    )
    workers = min(4, os.cpu_count() or 1)
    parser.add_argument("--workers", type=int, default=workers, help="Processes (%(default)s).")
    return parser
