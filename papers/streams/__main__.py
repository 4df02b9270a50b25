"""Experience following (arXiv 2505.16067) on any stream, under every evaluator and deletion."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import inspect
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from atommem.config import EmbedderConfig, check_choice
from atommem.embedding import make_embedder
from atommem.envs.scoring.statistics import wilson_interval
from atommem.errors import DataError
from atommem.plugins import find
from papers.experience import Bank, Experience, Similarity
from papers.experiment import Journal, Report, main, progress
from papers.inputs import read_json_rows
from papers.streams.agents import SIMILARITIES, Agent, StreamRow

EVALUATORS = ("fixed", "add_all", "noisy", "strict")
DELETIONS = ("periodic", "history", "combined")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the experiment's flags."""
    texts = {
        "stream": "JSON Lines of query and truth; with output for the initial memory.",
        "agent": "Class with act(row, shown) and score(row, output).",
        "similarity": f"Of queries: {', '.join(SIMILARITIES)} (%(default)s).",
        "k": "Records shown for a task (%(default)s).",
        "evaluators": "Rules of addition (all four of the paper's kinds).",
        "deletions": "Retention rules, with the last evaluator.",
        "capacity": "Most records; unlimited if unset.",
        "embedder_model": "For similarity text; unset: hashed words, which need no model.",
        "seed": "Of evaluators and rules.",
    }
    parser.add_argument("--stream", type=Path, required=True, metavar="FILE", help=texts["stream"])
    parser.add_argument("--agent", required=True, metavar="MODULE:CLASS", help=texts["agent"])
    parser.add_argument("--similarity", default="text", help=texts["similarity"])
    parser.add_argument("--k", type=int, default=4, help=texts["k"])
    for name, choices in (("evaluators", EVALUATORS), ("deletions", DELETIONS)):
        parser.add_argument(f"--{name}", nargs="+", default=list(choices), help=texts[name])
    parser.add_argument("--capacity", type=int, help=texts["capacity"])
    parser.add_argument("--embedder_model", help=texts["embedder_model"])
    parser.add_argument("--seed", type=int, default=0, help=texts["seed"])


def run(arguments: argparse.Namespace, journal: Journal) -> Report:
    """Measure success and size under every evaluator, and under the last one with deletions."""
    check_choice("similarity", arguments.similarity, tuple(SIMILARITIES))
    rows, make_agent = read_stream(arguments.stream), find("atommem.agents", arguments.agent)
    config = EmbedderConfig("hashing")
    if arguments.embedder_model is not None:
        config = EmbedderConfig("sentence_transformer", arguments.embedder_model)
    embedder = make_embedder(config)

    def measure(evaluator: str, deletion: str) -> list[Any]:
        progress(f"streams: {evaluator}, {deletion}")
        bank = Bank(
            embedder,
            capacity=arguments.capacity,
            retention="fifo" if deletion == "none" else deletion,
            evaluator=evaluator,
            seed=arguments.seed,
        )
        similarity = SIMILARITIES[arguments.similarity]
        outcomes = asyncio.run(run_rows(rows, make_agent(), bank, similarity, arguments.k))
        low, high = wilson_interval(sum(outcome >= 1 for outcome in outcomes), len(outcomes))
        return [f"{evaluator}, {deletion}", fmean(outcomes), f"[{low:.3f}, {high:.3f}]", len(bank)]

    arms = [(evaluator, "none") for evaluator in arguments.evaluators]
    arms += [(arguments.evaluators[-1], deletion) for deletion in arguments.deletions]
    # A changed agent starts anew.
    code = hashlib.sha256(Path(inspect.getfile(make_agent)).read_bytes()).hexdigest()[:16]
    lines = [journal.once(json.dumps([*arm, code]), partial(measure, *arm)) for arm in arms]
    report = Report("streams", "Addition and deletion of experience, after arXiv 2505.16067")
    columns = ["added, deleted by", "success", "95%, as if tasks were independent", "records"]
    report.table(arguments.stream.name, columns, lines)
    return report


def read_stream(path: Path) -> list[StreamRow]:
    """Read the rows of a file.

    Raises:
        DataError: A row has no query or truth.
    """
    found = []
    for number, row in enumerate(read_json_rows(path), start=1):
        if not {"query", "truth"} <= row.keys():
            raise DataError(f"{path}, row {number}: needs query and truth.")
        query, output = row["query"], row.get("output")
        text = query if isinstance(query, str) else json.dumps(query)
        found.append(StreamRow(text, row["truth"], None if output is None else str(output)))
    return found


async def run_rows(
    rows: Sequence[StreamRow], agent: Agent, bank: Bank, similarity: Similarity | None, k: int
) -> list[float]:
    """Return the outcome of every task; rows with an output are the initial memory."""
    known = [row for row in rows if row.output is not None]
    await bank.fill(_experience(row, row.output or "", agent) for row in known)
    outcomes = []
    for row in rows:
        if row.output is None:
            shown = await bank.retrieve(row.query, k, similarity)
            experience = _experience(row, await agent.act(row, shown), agent)
            outcomes.append(float(experience.outcome or 0.0))
            await bank.end(experience)
    return outcomes


def _experience(row: StreamRow, output: str, agent: Agent) -> Experience:
    scored = dict(agent.score(row, output))
    return Experience(row.query, output, float(scored.pop("outcome")), scored)


if __name__ == "__main__":
    raise SystemExit(main("streams", __doc__, add_flags, run))
