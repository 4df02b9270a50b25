"""Experience following (arXiv 2505.16067) on any stream, under every evaluator and deletion."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import inspect
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import numpy as np

from atommem.config import EmbedderConfig, check_choice
from atommem.embedding import make_embedder
from atommem.envs.scoring.statistics import wilson_interval
from atommem.errors import DataError
from atommem.memory.log import Entry
from atommem.memory.rules import Numbers, StoreState
from atommem.plugins import find
from papers.experience import EVALUATORS, Bank, Experience, Similarity
from papers.experiment import Journal, Report, main, progress
from papers.inputs import read_json_rows

Shown = Sequence[tuple[Entry, float]]
"""Retrieved records with their similarity, best first."""
Input = Mapping[str, Any]


@dataclass(frozen=True)
class StreamRow:
    """One line of a stream."""

    query: str  # a text, or a JSON object as its text
    truth: Any  # the right result, as the agent's `score` understands it
    output: str | None = None  # the work done, in a record of the initial memory


class Agent(Protocol):
    """Found by ``package.module:Class``, made without arguments; does one task at a time."""

    async def act(self, row: StreamRow, shown: Shown) -> str:
        """Do the task with the retrieved records (`executions`)."""
        ...

    def score(self, row: StreamRow, output: str) -> Mapping[str, Any]:
        """Return ``outcome`` (1 success, 0 failure), and optionally an ``error``."""
        ...


def executions(shown: Shown) -> list[str]:
    """Return the work done in each record."""
    return [(record.details or {}).get("execution", "") for record, _ in shown]


class Copier:
    """Repeats the most similar record, as EHRAgent's follower would; exact match."""

    async def act(self, row: StreamRow, shown: Shown) -> str:
        """Return nothing where nothing is shown."""
        return executions(shown)[0] if shown else ""

    def score(self, row: StreamRow, output: str) -> Mapping[str, Any]:
        """Return exact match."""
        return {"outcome": float(output == row.truth)}


class Voter(Copier):
    """Answers the majority class of the records, as a classifier of traffic (CIC-IoT)."""

    async def act(self, row: StreamRow, shown: Shown) -> str:
        """Return the majority."""
        counts = Counter(executions(shown))
        return counts.most_common(1)[0][0] if counts else ""


class Driver(Copier):
    """Copies the most similar trajectory; right within a mean distance of 2.5 (UniAD)."""

    tolerance = 2.5

    def score(self, row: StreamRow, output: str) -> Mapping[str, Any]:
        """Return the mean distance as ``error``."""
        if not output:
            return {"outcome": 0.0, "error": 1e9}
        gap = np.asarray(json.loads(output)) - np.asarray(row.truth)
        error = float(np.mean(np.linalg.norm(gap, axis=-1)))
        return {"outcome": float(error < self.tolerance), "error": error}


KEYS = {"ego": 1.0, "goal": 10.0, "history": 1.0}
"""Keys of AgentDriver's inputs, with the weights of its code."""


def relative_change(a: Input, b: Input) -> float:
    """Return 1 - the mean relative change (CIC-IoT); texts are equal or not."""
    changes = []
    for name, value in a.items():
        if isinstance(value, str):
            changes.append(float(value != b[name]))
        else:
            most = max(abs(value), abs(b[name]))
            changes.append(abs(value - b[name]) / most if most else 0.0)
    return 1 - float(np.mean(changes))


def three_keys(a: Input, b: Input) -> float:
    """Return exp(-sum over keys of weight x squared distance) (AgentDriver)."""
    squares = {key: np.sum((np.asarray(a[key]) - np.asarray(b[key])) ** 2) for key in KEYS}
    return float(np.exp(-sum(weight * float(squares[key]) for key, weight in KEYS.items())))


def _similarity(compare: Callable[[Input, Input], float]) -> Similarity:
    def similarity(query: str, store: StoreState) -> Numbers:
        asked = _parse(query)
        try:
            texts = [store.entries[int(i)].text for i in store.ids]
            return np.array([compare(asked, _parse(text)) for text in texts])
        except (KeyError, TypeError) as error:
            message = f"inputs of the stream do not have the same fields ({error})"
            raise DataError(f"{message}: {query[:200]}") from error

    return similarity


@lru_cache(maxsize=100_000)
def _parse(query: str) -> Input:
    try:
        found = json.loads(query)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise DataError(f"this similarity needs inputs that are JSON objects: {query[:200]!r}")
    return found


SIMILARITIES: Mapping[str, Similarity | None] = {
    "text": None,
    "keys": _similarity(three_keys),
    "relative": _similarity(relative_change),
}
"""``text`` is the cosine of text embeddings, the bank's own (EHRAgent)."""


DELETIONS = ["periodic", "history", "combined"]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the experiment's flags."""
    add = parser.add_argument
    help_text = "JSON Lines of query and truth; with output for the initial memory."
    add("--stream", type=Path, required=True, metavar="FILE", help=help_text)
    help_text = "Class with act(row, shown) and score(row, output)."
    add("--agent", required=True, metavar="MODULE:CLASS", help=help_text)
    help_text = f"Of queries: {', '.join(SIMILARITIES)} (%(default)s)."
    add("--similarity", default="text", help=help_text)
    add("--k", type=int, default=4, help="Records shown for a task (%(default)s).")
    help_text = "Rules of addition (all four of the paper's kinds)."
    add("--evaluators", nargs="+", default=list(EVALUATORS), help=help_text)
    help_text = "Retention rules, with the last evaluator."
    add("--deletions", nargs="+", default=DELETIONS, help=help_text)
    add("--capacity", type=int, help="Most records; unlimited if unset.")
    help_text = "For similarity text; unset: hashed words, which need no model."
    add("--embedder_model", help=help_text)
    add("--seed", type=int, default=0, help="Of evaluators and rules.")


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
    """Read the rows of a file; DataError if one has no query or truth."""
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
