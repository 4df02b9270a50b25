"""The command `atommem data`: build task files, convert them, look at them, generate synthetic ones."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from atommem import plugins
from atommem.arguments import Command, Parser, make, pop_flags, run_command
from atommem.config import check_least
from atommem.environment import DEFAULT_ENVIRONMENT, TaskDescription, find_environment
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
    """Run ``atommem data``; returns the exit status.

    Raises:
        AtomMemError: A setting is wrong, or a file is missing or damaged.
    """
    commands = {
        "build": Command(_build, "write a task file: --environment NAME ... (default: longdoc)"),
        "show": Command(_show, "print the first tasks of a file"),
        "convert": Command(_convert, "convert LoCoMo, LongMemEval, MemoryAgentBench, BEAM, ..."),
        "synthetic": Command(_synthetic, "generate tasks of the synthetic world"),
    }
    for name in plugins.names(GROUP):
        run = partial(_run_plugin, name)
        commands[name] = Command(run, "")
    return run_command("atommem data", commands, sys.argv[1:] if argv is None else argv)


def _run_plugin(name: str, argv: list[str]) -> int:
    return int(plugins.find(GROUP, name)(argv))


def _build(argv: list[str]) -> int:
    named, rest = pop_flags(argv, ["environment"])
    name, *others = named.get("environment") or [DEFAULT_ENVIRONMENT]
    return find_environment(name).build([*others, *rest])


def _show(argv: list[str]) -> int:
    parser = Parser("atommem data show", "Print the first tasks of a file.")
    parser.add_argument("file", type=Path, help="A task file, or one that `convert` reads.")
    parser.add_argument("--n", type=int, default=3, help="Number of tasks (%(default)s).")
    parser.add_argument(
        "--environment", default=DEFAULT_ENVIRONMENT, help="Environment of the file (%(default)s)."
    )
    args = parser.parse_args(argv)
    check_least(args, n=0)
    environment = find_environment(args.environment)
    # A task file of ours is read only as far as shown.
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


def _convert(argv: list[str]) -> int:
    formats = "LoCoMo, LongMemEval, MemoryAgentBench, BEAM or MemAgent"
    parser = Parser("atommem data convert", f"Write a task file of {formats}.")
    parser.add_argument("file", type=Path, help=f"File of {formats}.")
    parser.add_argument("--out", type=Path, required=True, help="A .parquet or .jsonl file.")
    parser.add_argument(
        "--wording",
        metavar="official|FILE",
        help="LoCoMo: its authors' questions, in our words or those of a YAML file (docs/data.md).",
    )
    parser.add_argument(
        "--questions", type=int, help=f"LoCoMo: questions of a task (default: {QUESTIONS})."
    )
    args = parser.parse_args(argv)
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
        raise DataError(f"{args.file}: has no rows. Give one that has; download it again.")
    count = save_tasks(chain(first, tasks), args.out)
    settings = {
        "wording": args.wording,
        "questions": args.questions,
        "input": describe_file(args.file),
    }
    beside = write_provenance(args.out, {"command": "atommem data convert", **settings})
    print(f"{args.out}: {count} tasks; provenance: {beside}")
    return 0


def _synthetic(argv: list[str]) -> int:
    parser = Parser("atommem data synthetic", "Generate tasks of the synthetic world.")
    parser.add_argument("--n", type=int, required=True, help="Tasks to generate.")
    parser.add_argument("--seed", type=int, default=42, help="Seed of every draw (%(default)s).")
    parser.add_argument("--out", type=Path, required=True, help="A .parquet or .jsonl file.")
    parser.add_settings("world", WorldConfig)
    args = parser.parse_args(argv)
    config = make(WorldConfig, args)
    check_least(args, n=1)
    check_out(args.out, [])
    tasks = tqdm(
        generate(config, args.n, args.seed), "generating", args.n, unit="task", disable=None
    )
    count = save_tasks(tasks, args.out)
    settings = {"source": "synthetic", "n": args.n, "seed": args.seed, "world": asdict(config)}
    beside = write_provenance(args.out, settings)
    print(f"{args.out}: {count} tasks; provenance: {beside}")
    return 0
