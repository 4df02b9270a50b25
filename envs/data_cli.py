"""The command `atommem data`: build, convert, show and generate task files."""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tqdm import tqdm

from atommem.arguments import Command, Parser, find_flag, make, pop_flags, run_command
from atommem.config import check_least
from atommem.environment import DEFAULT_ENVIRONMENT, find_environment
from atommem.envs import task_files
from atommem.envs.benchmarks.build import BuildConfig, Pool, build_tasks
from atommem.envs.benchmarks.long_texts import QUESTIONS, parse_locomo
from atommem.envs.benchmarks.questions import BENCHMARKS, WEB_BENCHMARKS, listed_rows, with_aliases
from atommem.envs.benchmarks.rows import Benchmark, Columns, find_rows, read_rows, read_table
from atommem.envs.synthetic import ledger, ruler, told
from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.envs.synthetic.writing import SPLITS
from atommem.envs.task import Task
from atommem.errors import ConfigError, DataError
from atommem.text_safety import printable

_GENERATED: dict[str, tuple[type[Any], Callable[..., Iterable[Task]]]] = {
    told.SOURCE: (told.ToldConfig, told.generate),
    ledger.SOURCE: (ledger.LedgerConfig, ledger.generate),
    ruler.SOURCE: (ruler.RulerConfig, ruler.generate),
}
_OUT = "A .parquet or .jsonl file."


def main(argv: list[str] | None = None) -> int:
    synthetic = partial(_generate, "synthetic")
    commands = {
        "build": Command(_build, "write a task file (--environment NAME, or longdoc)"),
        "show": Command(_show, "print the first tasks of a file, and check all"),
        "convert": Command(_convert, "convert LoCoMo, LongMemEval, BEAM, MemAgent or a table"),
        "synthetic": Command(synthetic, "generate tasks of the synthetic world"),
    }
    return run_command("atommem data", commands, sys.argv[1:] if argv is None else argv)


def _build(argv: list[str]) -> int:
    named, rest = pop_flags(argv, ["environment"])
    name, *others = named.get("environment") or [DEFAULT_ENVIRONMENT]
    return find_environment(name).build([*others, *rest])


def build_long_documents(argv: Sequence[str]) -> int:
    """Build the task file of a benchmark of questions with paragraphs; return the exit status."""
    name = find_flag(argv, "benchmark")
    if name in _GENERATED:
        return _generate(name, argv)
    parser = Parser(
        "atommem data build",
        "Build long-document tasks: the gold documents of questions, shuffled among distractors.",
        usage="atommem data build --benchmark NAME --split NAME --out FILE [--SETTING]",
    )
    known = f"Its format; or {', '.join(_GENERATED)}: generated (--benchmark told --help)."
    _add_source(parser, BENCHMARKS, known, _GENERATED)
    names = "id_aliases.json of 2WikiMultihopQA; its names are right too."
    parser.add_argument("--aliases", type=Path, help=names)
    parser.add_settings("tasks", BuildConfig)
    args = parser.read(argv)
    config = make(BuildConfig, args)
    benchmark = BENCHMARKS[args.benchmark]
    if args.aliases is not None:
        benchmark = with_aliases(benchmark, args.aliases)
    files, origin = _source(benchmark, args, argv)
    progress = tqdm(files, "reading", unit="file", disable=None)
    pool = Pool(row for file in progress for row in benchmark.read(file))
    tasks = build_tasks(pool, config, benchmark.name, args.split)
    counts = {"questions": len(pool.questions), "documents": len(pool.documents)}
    counts["rows_without_all_gold_documents"] = pool.skipped
    if pool.skipped:
        print(f"{pool.skipped} rows left out: a supporting paragraph is missing", file=sys.stderr)
    aliases = args.aliases and task_files.describe_file(args.aliases)
    settings = {**origin, **asdict(config), "aliases": aliases, "pool": counts}
    return _save(tqdm(tasks, "building", config.n, unit="task", disable=None), args.out, settings)


def _add_source(
    parser: Parser, benchmarks: Mapping[str, Benchmark], known: str, others: Iterable[str] = ()
) -> None:
    add, splits = parser.add_argument, {split for one in benchmarks.values() for split in one.files}
    add("--benchmark", required=True, choices=[*benchmarks, *others], help=known)
    add("--split", required=True, choices=sorted(splits), help="Official file to look for.")
    folders = (
        "The benchmark's file, or a folder that holds it (itself or in a folder named like the "
        "benchmark); may be repeated. Default: $ATOMMEM_DATA, else the folder data."
    )
    add("--input", action="extend", nargs="+", type=Path, metavar="PATH", help=folders)
    add("--out", type=Path, required=True, help=_OUT)


def _source(
    benchmark: Benchmark, args: Namespace, argv: Sequence[str]
) -> tuple[list[Path], dict[str, Any]]:
    """Return the files that flags name, and what provenance says of them."""
    folders = args.input or [os.environ.get("ATOMMEM_DATA") or "data"]
    files = [file for folder in folders for file in benchmark.find(args.split, folder)]
    task_files.check_out(args.out, files)
    command = ["atommem", "data", "build", *argv]
    named = {"command": command, "benchmark": benchmark.name, "split": args.split}
    return files, {**named, "inputs": [*map(task_files.describe_file, files)]}


def _generate(source: str, argv: Sequence[str]) -> int:
    """Write tasks of the synthetic world, or of another source, which has splits."""
    config_class, make_tasks = _GENERATED.get(source, (WorldConfig, generate))
    title, command = ("texts", "build") if source in _GENERATED else ("world", source)
    parser = Parser(f"atommem data {command}", f"Write generated tasks: {source}.")
    add = parser.add_argument
    if source in _GENERATED:
        add("--benchmark", required=True, choices=list(_GENERATED), help="Which.")
        add("--split", default="train", choices=SPLITS, help="(%(default)s)")
    add("--n", type=int, required=True, help="Tasks to write.")
    add("--seed", type=int, default=42, help="Seed of every draw (%(default)s).")
    add("--out", type=Path, required=True, help=_OUT)
    parser.add_settings(title, config_class)
    args = parser.parse_args(argv)
    config = make(config_class, args)
    check_least(args, n=1)
    task_files.check_out(args.out)
    split = {"split": args.split} if hasattr(args, "split") else {}
    tasks = make_tasks(config, args.n, args.seed, **split)
    settings = {"source": source, **split, "n": args.n, "seed": args.seed, title: asdict(config)}
    return _save(tqdm(tasks, "generating", args.n, unit="task", disable=None), args.out, settings)


def build_web_questions(argv: Sequence[str]) -> int:
    """Build a task file of a benchmark without documents; return the exit status."""
    about = "Build tasks of questions that are asked of the web."
    usage = "atommem data build --environment web --benchmark NAME --split NAME\n    --out FILE"
    parser = Parser("atommem data build --environment web", about, usage=usage)
    _add_source(parser, WEB_BENCHMARKS, "Its format.")
    add = parser.add_argument
    add("--n", type=int, help="Tasks, drawn by the seed (default: all).")
    add("--seed", type=int, default=42, help="Seed of the draw (%(default)s).")
    only = "Only questions of this file, by id or text: a published subset, as GAIA's 103 of text."
    add("--only", type=Path, metavar="FILE", help=only)
    add("--start_page", action="store_true", help="Show WebWalkerQA's root page first.")
    args = parser.parse_args(argv)
    check_least(args, n=1)
    benchmark = WEB_BENCHMARKS[args.benchmark]
    files, origin = _source(benchmark, args, ["--environment", "web", *argv])
    rows = [row for file in files for row in benchmark.read(file)]
    if args.only is not None:
        rows = listed_rows(rows, args.only)
    if not rows:
        raise DataError(f"{args.out}: would have no tasks. Correct --input, --split or --only.")
    if args.n is not None and args.n < len(rows):
        places = Random(f"{args.seed}:questions").sample(range(len(rows)), args.n)
        rows = [rows[place] for place in sorted(places)]
    tasks = []
    for question in (row.question for row in rows):
        metadata = {"split": args.split}
        if args.start_page and "root_url" in question.metadata:
            metadata["start"] = question.metadata["root_url"]
        name = f"{benchmark.name}-{args.split}-{question.id}"
        tasks.append(Task(name, (question,), source=benchmark.name, metadata=metadata))
    if secret := sum(not row.question.answers for row in rows):
        print(f"{secret} tasks without a known answer", file=sys.stderr)
    drawn = {"seed": args.seed, "counts": {"tasks": len(tasks)}}
    drawn["only"] = args.only and task_files.describe_file(args.only)
    return _save(tasks, args.out, {**origin, **drawn})


def _show(argv: list[str]) -> int:
    parser = Parser("atommem data show", "Print the first tasks of a file, and check all.")
    add = parser.add_argument
    add("file", type=Path, help="A task file, or one that `convert` reads.")
    add("--limit", type=int, default=3, help="Only the first ones (%(default)s).")
    add("--environment", default=DEFAULT_ENVIRONMENT, help="That of the file (%(default)s).")
    args = parser.parse_args(argv)
    check_least(args, limit=0)
    environment, file = find_environment(args.environment), args.file
    ours, broken, count = environment.read_tasks is task_files.load_tasks, list[DataError](), 0
    tasks = task_files.iter_tasks(read_rows(file), broken) if ours else environment.read_tasks(file)
    for count, described in enumerate(map(environment.describe, tasks), start=1):
        if count > args.limit:
            continue
        lines = [f"{described.id}  ({described.source or 'no source'})"]
        for number, question in enumerate(described.questions, start=1):
            lines.append(f"  question {number}: {question.text}")
            lines.append(f"    answer: {' | '.join(question.golds) or 'not known'}")
            lines += [f"    {name}: {value}" for name, value in question.attributes.items()]
        print(printable("\n".join(lines)), end="\n\n")
    print(f"tasks: {count}, broken rows: {len(broken)}", *broken[:10], sep="\n")
    print(f"and {len(broken) - 10} more\n" * (len(broken) > 10), end="")
    return 2 if broken else 0


def _convert(argv: list[str]) -> int:
    parser = Parser(
        "atommem data convert",
        "Write a task file of LoCoMo, LongMemEval, BEAM or MemAgent, or of a table: name its "
        "columns (--question question --answer answers.text --text context).",
    )
    add = parser.add_argument
    add("file", help="JSON, JSON Lines, CSV, parquet, Arrow; or a hub name.")
    add("--out", type=Path, required=True, help=_OUT)
    for name in ("question", "answer", "text"):
        add(f"--{name}", metavar="COLUMN", help=f"Table: column of the {name}.")
    add("--id", metavar="COLUMN", help="Table: column of an id (default: row).")
    add("--split", help="Split of a hub name or folder.")
    add("--subset", help="Subset (configuration) of a hub name.")
    add("--wording", choices=["official"], help="LoCoMo: its authors' questions, in our words.")
    add("--questions", type=int, help=f"LoCoMo: questions of a task (default: {QUESTIONS}).")
    args = parser.parse_args(argv)
    check_least(args, questions=1)
    path = Path(args.file)
    task_files.check_out(args.out, [path])
    rows = find_rows(args.file, args.split, args.subset)
    columns = {name: getattr(args, name) for name in ("question", "answer", "text", "id")}
    left_out: list[int] = []
    if any(columns.values()):
        if missing := [name for name in ("question", "answer", "text") if not columns[name]]:
            raise ConfigError(f"{missing[0]}: missing. Name the column, as --{missing[0]} COLUMN.")
        if args.wording or args.questions:
            raise ConfigError("wording, questions: only of LoCoMo, not of a table. Leave them out.")
        tasks = read_table(rows, Columns(**columns), left_out)
    elif args.wording is None and args.questions is None:
        tasks = task_files.iter_tasks(rows)
    else:
        questions, official = args.questions or QUESTIONS, args.wording is not None
        tasks = (task for row in rows for task in parse_locomo(row, questions, official))
    settings = {
        "command": "atommem data convert",
        **{name: getattr(args, name) for name in ("wording", "questions", "split", "subset")},
        "columns": columns,
        "input": task_files.describe_file(path) if path.is_file() else {"name": args.file},
    }
    status = _save(tasks, args.out, settings)
    if left_out:
        print(f"{len(left_out)} rows left out: they have no answer", file=sys.stderr)
    return status


def _save(tasks: Iterable[Task], out: Path, settings: Mapping[str, Any]) -> int:
    count = task_files.save_tasks(tasks, out)
    print(f"{out}: {count} tasks; provenance: {task_files.write_provenance(out, settings)}")
    return 0
