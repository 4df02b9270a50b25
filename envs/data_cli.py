"""The command `atommem data`: build task files, look at them, generate synthetic ones."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from atommem.envs.benchmarks.build import BuildConfig, Pool, build_tasks
from atommem.envs.benchmarks.overlap import AskedQuestions, read_asked
from atommem.envs.benchmarks.registry import BENCHMARKS, SPLITS, get_benchmark
from atommem.envs.benchmarks.rows import QARow
from atommem.envs.benchmarks.twowiki import SOURCE as TWOWIKI
from atommem.envs.benchmarks.twowiki import read_twowiki
from atommem.envs.provenance import describe_file, write_provenance
from atommem.envs.task import Task
from atommem.envs.task_files import check_name, iter_tasks, save_tasks
from atommem.errors import AtomMemError, ConfigError


def main(argv: list[str] | None = None) -> int:
    """Run ``atommem data ...``; returns the exit status (2: an `AtomMemError`, printed to stderr)."""
    argv = sys.argv[1:] if argv is None else argv
    args = _parser(argv).parse_args(argv)
    try:
        return int(args.run(args))
    except AtomMemError as error:
        print(f"atommem data: {error}", file=sys.stderr)
        return 2


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="atommem data", description=__doc__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    build = commands.add_parser(
        "build",
        help="build long-document tasks from HotpotQA, 2WikiMultihopQA or MuSiQue",
        description="Build long-document tasks: the questions' gold documents, shuffled among distractors.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_build_arguments(build)
    build.set_defaults(run=partial(_build, argv))
    show = commands.add_parser("show", help="print the first tasks of a file")
    show.add_argument("file", type=Path, help="a file that build or synthetic wrote, or one of MemAgent's")
    show.add_argument("--n", type=_count, default=3, help="how many (default: 3)")
    show.set_defaults(run=_show)
    synthetic = commands.add_parser("synthetic", help="generate tasks of the synthetic world")
    if argv[:1] == ["synthetic"]:
        from atommem.envs.synthetic.synthetic_cli import add_arguments, run

        add_arguments(synthetic)
        synthetic.set_defaults(run=run)
    return parser


def _add_build_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--benchmark", required=True, choices=list(BENCHMARKS), help="whose format the input has")
    parser.add_argument("--split", required=True, choices=SPLITS, help="which official file to look for in a folder")
    parser.add_argument(
        "--input",
        action="append",
        type=Path,
        metavar="FILE_OR_FOLDER",
        help="the benchmark's file, or a folder that holds it (itself or in a folder with the benchmark's name); may "
        "be repeated; default: $ATOMMEM_DATA, or else the folder data",
    )
    parser.add_argument("--aliases", type=Path, help="id_aliases.json of 2WikiMultihopQA: its names count as right")
    parser.add_argument("--docs", type=int, default=200, help="documents of a task")
    parser.add_argument("--questions", type=_range, default=(1, 1), metavar="Q or Q-Q", help="questions of a task")
    parser.add_argument("--n", type=int, required=True, help="tasks to build")
    parser.add_argument("--seed", type=int, default=42, help="seed of every draw")
    parser.add_argument("--out", type=Path, required=True, help="file to write: .parquet or .jsonl")
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
    parser.add_argument("--drop_overlap", action="store_true", help="leave shared questions out instead of refusing")
    parser.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1), help="processes")


def _range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    try:
        return int(low), int(high or low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number or a range such as 1-10") from None


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up")
    return int(text)


def _build(argv: Sequence[str], args: argparse.Namespace) -> int:
    config = BuildConfig(args.docs, args.n, args.questions, args.seed, args.exclude_answer_documents)
    check_name(args.out)
    benchmark = get_benchmark(args.benchmark)
    read = benchmark.read
    if args.aliases is not None:
        if benchmark.name != TWOWIKI:
            raise ConfigError(f"aliases is given for {benchmark.name}; only {TWOWIKI} has such a file.")
        read = partial(read_twowiki, aliases=args.aliases)
    folders = args.input or [Path(os.environ.get("ATOMMEM_DATA") or "data")]
    files = [file for folder in folders for file in benchmark.find(args.split, folder)]
    asked = [read_asked(file) for file in args.exclude]
    rows_of: dict[Path, int] = {}

    def rows() -> Iterator[QARow]:
        for file in files:
            print(f"reading {file}", file=sys.stderr)
            rows_of[file] = 0
            for row in read(file):
                rows_of[file] += 1
                if not _shared(row, asked):
                    yield row

    pool = Pool(rows())
    if not args.drop_overlap:
        for questions in asked:
            questions.check()
    used: dict[str, int] = {"tasks": 0, "questions": 0, "documents": 0}
    tasks = build_tasks(pool, config, benchmark.name, args.split, args.workers)
    save_tasks(_counted(tqdm(tasks, "building", config.n, unit="task", disable=None), used), args.out)
    beside = write_provenance(
        args.out,
        {
            "command": ["atommem", "data", *argv],
            "benchmark": benchmark.name,
            "split": args.split,
            "documents": config.documents,
            "questions": list(config.questions),
            "n": config.n,
            "seed": config.seed,
            "exclude_answer_documents": config.exclude_answer_documents,
            "inputs": [{**describe_file(file), "rows": rows_of[file]} for file in files],
            "aliases": None if args.aliases is None else describe_file(args.aliases),
            "excluded": [{**describe_file(q.path), "shared_questions": len(q.shared)} for q in asked],
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
        f"and {len(pool.documents)} documents; where it came from: {beside}"
    )
    return 0


def _shared(row: QARow, asked: Iterable[AskedQuestions]) -> bool:
    """Whether an evaluation file asks the question of `row`; notes it with every file that does."""
    found = False
    for questions in asked:
        if questions.has(row):
            questions.shared.append(row)
            found = True
    return found


def _counted(tasks: Iterable[Task], counts: dict[str, int]) -> Iterator[Task]:
    for task in tasks:
        counts["tasks"] += 1
        counts["questions"] += len(task.questions)
        counts["documents"] += len(task.documents)
        yield task


def _show(args: argparse.Namespace) -> int:
    for task in islice(iter_tasks(args.file), args.n):
        print(_described(task), end="\n\n")
    return 0


def _described(task: Task) -> str:
    """A task in readable lines: its size, questions, answers, and gold documents."""
    gold = [(number, document) for number, document in enumerate(task.documents, start=1) if document.gold]
    characters = len(task.context or "") + sum(len(document.text) for document in task.documents)
    lines = [
        f"{task.id}  ({task.source or 'no source'}: {len(task.questions)} questions, {len(task.documents)} documents, "
        f"{len(gold)} of them gold, {characters:,} characters)"
    ]
    for number, question in enumerate(task.questions, start=1):
        notes = _notes(question.metadata)
        lines.append(f"  question {number}: {question.text}{notes}")
        lines.append(f"    answer: {' | '.join(question.answers)}")
    for number, document in gold:
        lines.append(f"  document {number}, {document.title}: {_cut(document.text)}")
    if task.context is not None:
        lines.append(f"  context: {_cut(task.context)}")
    return "\n".join(lines)


def _notes(metadata: dict[str, Any]) -> str:
    notes = [str(metadata[name]) for name in ("type", "level") if name in metadata]
    if "hops" in metadata:
        notes.append(f"{metadata['hops']} hops")
    return f"  [{', '.join(notes)}]" if notes else ""


def _cut(text: str, length: int = 100) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 3] + "..."
