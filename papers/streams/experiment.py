"""A stream under every evaluator and deletion, on the experience bank."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import inspect
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from atommem.config import check_choice
from atommem.embedding.embedder import Embedder, HashingEmbedder
from atommem.embedding.models import SentenceTransformerEmbedder
from atommem.envs.benchmarks.rows import read_rows
from atommem.envs.scoring.statistics import wilson_interval
from atommem.envs.task_files import write_text
from atommem.errors import ConfigError
from atommem.plugins import find
from papers.experience import Bank, Experience
from papers.journal import Journal
from papers.report import Report, Table
from papers.streams.agents import Agent, StreamRow
from papers.streams.examples import EXAMPLES, Example, as_lines
from papers.streams.similarities import SIMILARITIES

EVALUATORS = ("fixed", "add_all", "noisy", "strict")
DELETIONS = ("none", "periodic", "history", "combined")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of ``python -m papers.streams``."""
    parser.add_argument(
        "--stream",
        type=Path,
        metavar="FILE",
        help="JSON Lines of query, truth, and output to begin with.",
    )
    parser.add_argument(
        "--agent", metavar="MODULE:CLASS", help="Yours: act(row, shown) and score(row, output)."
    )
    parser.add_argument(
        "--similarity", default="text", help=f"Of queries: {', '.join(SIMILARITIES)} (%(default)s)."
    )
    parser.add_argument(
        "--k", type=int, default=4, help="Records that a task is shown (%(default)s)."
    )
    parser.add_argument(
        "--evaluators",
        nargs="+",
        default=list(EVALUATORS),
        help="What is added (all four of the paper's kinds).",
    )
    parser.add_argument(
        "--deletions", nargs="+", default=list(DELETIONS), help="Retention rules, beside none."
    )
    parser.add_argument("--capacity", type=int, help="Most records; unset is no limit.")
    parser.add_argument(
        "--embedder_model", help="For similarity text; unset: hashed words, which need no model."
    )
    parser.add_argument("--tasks", type=int, default=200, help="Of each example (%(default)s).")
    parser.add_argument("--seed", type=int, default=0, help="Of examples, evaluators and rules.")


def run(arguments: argparse.Namespace, progress: Callable[[str], None], journal: Journal) -> Report:
    """A table for the user's stream, or one for each example."""
    report = Report(
        "streams", "Addition and deletion of experience, after arXiv 2505.16067, on any stream"
    )
    if arguments.stream is not None:
        if arguments.agent is None:
            raise ConfigError("stream is given without its agent: --agent package.module:Class.")
        check_choice("similarity", arguments.similarity, tuple(SIMILARITIES))
        rows, make_agent = read_stream(arguments.stream), find("atommem.agents", arguments.agent)
        own = Example(lambda *_: rows, make_agent, arguments.similarity, arguments.k)
        report.tables.append(table(arguments.stream.name, rows, own, arguments, progress, journal))
        return report
    for name, example in EXAMPLES.items():
        rows = example.rows(arguments.seed, 60, arguments.tasks)
        if arguments.out is not None:
            write_text(arguments.out / f"{name}.jsonl", as_lines(rows))
        title = f"{name}: generated rows, similarity {example.similarity}, K {example.k}"
        report.tables.append(table(title, rows, example, arguments, progress, journal))
    report.notes.append(
        "These rows are generated in the form of the paper's agents, whose data may not be "
        "shipped, and the agents "
        "copy: they show how a stream is written (--out writes them), and nothing of the paper's "
        "results."
    )
    return report


def read_stream(path: Path) -> list[StreamRow]:
    """The rows of a file.

    Raises:
        DataError: A row has no query or truth.
    """
    found = []
    for row in read_rows(path):
        query = row.get("query")
        text = query if isinstance(query, str) else json.dumps(query)
        output = row.values.get("output")
        found.append(StreamRow(text, row.get("truth"), output if output is None else str(output)))
    return found


def table(
    title: str,
    rows: Sequence[StreamRow],
    example: Example,
    arguments: argparse.Namespace,
    progress: Callable[[str], None],
    journal: Journal,
) -> Table:
    """Success and size under every evaluator without deletion, and under the last one with each."""
    embedder: Embedder = HashingEmbedder(256)
    if arguments.embedder_model is not None and example.similarity == "text":
        embedder = SentenceTransformerEmbedder(arguments.embedder_model)
    arms = [(evaluator, "none") for evaluator in arguments.evaluators]
    arms += [
        (arguments.evaluators[-1], deletion)
        for deletion in arguments.deletions
        if deletion != "none"
    ]

    def line(evaluator: str, deletion: str) -> list[Any]:
        progress(f"streams: {title}: {evaluator}, {deletion}")
        retention = "fifo" if deletion == "none" else deletion
        bank = Bank(
            embedder,
            capacity=arguments.capacity,
            retention=retention,
            evaluator=evaluator,
            seed=arguments.seed,
        )
        outcomes = asyncio.run(run_rows(rows, example, bank))
        low, high = wilson_interval(sum(outcome >= 1 for outcome in outcomes), len(outcomes))
        return [f"{evaluator}, {deletion}", fmean(outcomes), f"[{low:.3f}, {high:.3f}]", len(bank)]

    # With another agent, what was found is not taken up.
    agent = hashlib.sha256(Path(inspect.getfile(example.agent)).read_bytes()).hexdigest()[:16]
    lines = [journal.once(json.dumps([title, *arm, agent]), partial(line, *arm)) for arm in arms]
    return Table(
        title,
        ["added, deleted by", "success", "95%, as if tasks were independent", "records"],
        lines,
    )


async def run_rows(rows: Sequence[StreamRow], example: Example, bank: Bank) -> list[float]:
    """The outcome of every task; rows with an output are the memory to begin with."""
    agent = example.agent()
    known = [row for row in rows if row.output is not None]
    await bank.fill(_experience(row, row.output or "", agent) for row in known)
    outcomes = []
    for row in rows:
        if row.output is None:
            shown = await bank.retrieve(row.query, example.k, SIMILARITIES[example.similarity])
            experience = _experience(row, await agent.act(row, shown), agent)
            outcomes.append(float(experience.outcome or 0.0))
            await bank.end(experience)
    return outcomes


def _experience(row: StreamRow, output: str, agent: Agent) -> Experience:
    scored = dict(agent.score(row, output))
    return Experience(row.query, output, float(scored.pop("outcome")), scored)
