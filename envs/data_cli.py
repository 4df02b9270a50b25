"""The command `atommem data`: build task files, convert them, look at them, generate synthetic ones."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from atommem import plugins
from atommem.command_line import CommandParser, add_flags, given_flags
from atommem.config import check_least
from atommem.description import TaskDescription
from atommem.environment import DEFAULT_ENVIRONMENT, find_environment
from atommem.envs.benchmarks.conversations import QUESTIONS
from atommem.envs.benchmarks.locomo import read_locomo, read_wording
from atommem.envs.provenance import check_out, describe_file, write_provenance
from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.envs.task import Task
from atommem.envs.task_files import iter_tasks, load_tasks, save_tasks
from atommem.errors import DataError
from atommem.text_safety import printable

GROUP = "atommem.data"
"""Entry points of further commands."""


def main(argv: list[str] | None = None) -> int:
    """Run ``atommem data ...``; returns the exit status.

    Raises:
        AtomMemError: A setting is wrong, or a file is missing or damaged.
    """
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["build"]:
        environment, arguments = _environment(argv[1:])
        return find_environment(environment).build(arguments)
    if argv[:1] and argv[0] in plugins.names(GROUP):
        return int(plugins.find(GROUP, argv[0])(argv[1:]))
    args = _parser().parse_args(argv)
    return int(args.run(args))


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="atommem data", description=__doc__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    commands.add_parser(
        "build",
        help=f"write a task file: --environment NAME ... (default: {DEFAULT_ENVIRONMENT}, from HotpotQA, "
        "2WikiMultihopQA or MuSiQue); what else it takes: build --environment NAME --help",
    )
    show = commands.add_parser("show", help="print the first tasks of a file")
    show.add_argument(
        "file",
        type=Path,
        help="a file that build, convert or synthetic wrote, or one that convert reads",
    )
    show.add_argument("--n", type=int, default=3, help="how many (default: 3)")
    show.add_argument(
        "--environment", default=DEFAULT_ENVIRONMENT, help="whose file it is (default: %(default)s)"
    )
    show.set_defaults(run=_show)
    convert = commands.add_parser(
        "convert",
        help="write a task file of LoCoMo, LongMemEval, MemoryAgentBench, BEAM or MemAgent",
    )
    convert.add_argument(
        "file", type=Path, help="of LoCoMo, LongMemEval, MemoryAgentBench, BEAM or MemAgent"
    )
    convert.add_argument(
        "--out", type=Path, required=True, help="file to write: .parquet or .jsonl"
    )
    convert.add_argument(
        "--wording",
        metavar="official|FILE",
        help="LoCoMo: ask as its authors do, in our words or in those of a YAML file (docs/data.md)",
    )
    convert.add_argument(
        "--questions", type=int, help=f"LoCoMo: questions of a task (default: {QUESTIONS})"
    )
    convert.set_defaults(run=_convert)
    synthetic = commands.add_parser("synthetic", help="generate tasks of the synthetic world")
    synthetic.add_argument("--n", type=int, required=True, help="Tasks to generate.")
    synthetic.add_argument("--seed", type=int, default=42, help="Seed of every draw (default: 42).")
    synthetic.add_argument(
        "--out", type=Path, required=True, help="File to write: .parquet or .jsonl."
    )
    add_flags(synthetic.add_argument_group("world", "What the tasks are like."), WorldConfig)
    synthetic.set_defaults(run=_synthetic)
    for name in plugins.names(GROUP):
        commands.add_parser(name)
    return parser


def _environment(argv: Sequence[str]) -> tuple[str, list[str]]:
    """The environment that a command line names, and the rest of it."""
    finder = CommandParser(add_help=False)
    finder.add_argument("--environment", default=DEFAULT_ENVIRONMENT)
    named, rest = finder.parse_known_args(argv)
    return named.environment, rest


def _show(args: argparse.Namespace) -> int:
    check_least(args, n=0)
    environment = find_environment(args.environment)
    # Of a file of ours no more is read than is shown.
    read = iter_tasks if environment.read_tasks is load_tasks else environment.read_tasks
    for task in islice(read(args.file), min(args.n, sys.maxsize)):
        print(printable(_described(task, environment.describe(task))), end="\n\n")
    return 0


def _described(task: Any, description: TaskDescription) -> str:
    """A task in readable lines: its questions and answers; of one of ours also its size and its gold documents."""
    size = f"{len(description.questions)} questions"
    shown = []
    if isinstance(task, Task):
        shown = [
            f"document {number}, {document.title}: {_cut(document.text)}"
            for number, document in enumerate(task.documents, start=1)
            if document.gold
        ]
        characters = len(task.context or "") + sum(
            len(document.text) for document in task.documents
        )
        size += f", {len(task.documents)} documents, {len(shown)} of them gold, {characters:,} characters"
        shown += [] if task.context is None else [f"context: {_cut(task.context)}"]
    lines = [f"{description.id}  ({description.source or 'no source'}: {size})"]
    for number, question in enumerate(description.questions, start=1):
        lines.append(f"  question {number}: {question.text}{_notes(question.attributes)}")
        lines.append(f"    answer: {' | '.join(question.golds) or 'not known'}")
    return "\n".join([*lines, *(f"  {line}" for line in shown)])


def _notes(attributes: Mapping[str, str]) -> str:
    notes = [attributes[name] for name in ("type", "level") if name in attributes]
    if "hops" in attributes:
        notes.append(f"{attributes['hops']} hops")
    return f"  [{', '.join(notes)}]" if notes else ""


def _cut(text: str, length: int = 100) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 3] + "..."


def _convert(args: argparse.Namespace) -> int:
    """A benchmark whose rows are ready tasks, as a task file."""
    check_out(args.out, [args.file])
    if args.wording is None and args.questions is None:
        tasks = iter_tasks(args.file)
    else:
        check_least(args, questions=1)
        wording = None if args.wording is None else read_wording(args.wording)
        tasks = read_locomo(args.file, args.questions or QUESTIONS, wording)
    tasks = iter(tasks)
    first = list(islice(tasks, 1))  # before an earlier file of that name is replaced
    if not first:
        raise DataError(
            f"{args.file}: has no rows. Give one that has; one that was downloaded, get again."
        )
    count = save_tasks(chain(first, tasks), args.out)
    settings = {
        "wording": args.wording,
        "questions": args.questions,
        "input": describe_file(args.file),
    }
    beside = write_provenance(args.out, {"command": "atommem data convert", **settings})
    print(f"{args.out}: {count} tasks; where it came from: {beside}")
    return 0


def _synthetic(args: argparse.Namespace) -> int:
    """Tasks of the synthetic world."""
    config = WorldConfig(**given_flags(args, WorldConfig))
    check_least(args, n=1)
    check_out(args.out, [])
    tasks = tqdm(
        generate(config, args.n, args.seed), "generating", args.n, unit="task", disable=None
    )
    count = save_tasks(tasks, args.out)
    settings = {"source": "synthetic", "n": args.n, "seed": args.seed, "world": asdict(config)}
    beside = write_provenance(args.out, settings)
    print(f"{args.out}: {count} tasks; where they came from: {beside}")
    return 0
