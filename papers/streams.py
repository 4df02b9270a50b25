"""Streams of tasks for an experience bank (arXiv 2505.16067): rows, agents, input similarities."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from atommem.embedding.embedder import Vectors
from atommem.errors import ConfigError, DataError
from atommem.memory.log import Entry
from atommem.memory.rules import Numbers, StoreState
from papers.experience import Similarity
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
    problem: str = ""  # what a prompt shows, if it is not the query


def executions(shown: Shown) -> list[str]:
    """Return the work done in each record."""
    return [(record.details or {}).get("execution", "") for record, _ in shown]


class Copier:
    """An agent of a user's stream: repeats the most similar record; exact match."""

    async def act(self, row: StreamRow, shown: Shown) -> str:
        """Return nothing where nothing is shown."""
        return executions(shown)[0] if shown else ""

    def score(self, row: StreamRow, output: str) -> Mapping[str, Any]:
        """Return ``outcome`` (1 success, 0 failure); an ``error`` is optional."""
        return {"outcome": float(output == row.truth)}


KEYS = {"ego": 1.0, "goal": 10.0, "history": 1.0}
"""Keys of AgentDriver's inputs, with the weights of its code."""


def cosine(query: Input, records: Sequence[Input]) -> Numbers:
    """Return the cosine of the vectors ``x`` (RegAgent)."""
    rows, x = np.array([record["x"] for record in records], dtype=float), np.array(query["x"])
    found: Numbers = rows @ x / np.linalg.norm(rows, axis=1) / np.linalg.norm(x)
    return found


def relative_change(query: Input, records: Sequence[Input]) -> Numbers:
    """Return 1 - the mean relative change (CIC-IoT); texts are equal or not."""
    total = np.zeros(len(records))
    for name, value in query.items():
        others = [record[name] for record in records]
        if isinstance(value, str):
            total += [float(value != other) for other in others]
        else:
            most = np.maximum(abs(value), np.abs(np.array(others, dtype=float)))
            total += np.abs(value - np.array(others)) / np.where(most > 0, most, 1)
    return 1 - total / len(query)


def minus_distance(query: Input, records: Sequence[Input]) -> Numbers:
    """Return -(sum over `KEYS` of weight x squared distance)."""
    total = np.zeros(len(records))
    for key, weight in KEYS.items():
        rows = np.array([record[key] for record in records], dtype=float)
        total -= weight * np.sum((rows - np.array(query[key])) ** 2, axis=1)
    return total


def similarity_of(compare: Callable[[Input, Sequence[Input]], Numbers]) -> Similarity:
    """Return the bank's similarity of inputs that are JSON objects."""

    def similarity(query: str, store: StoreState) -> Numbers:
        records = [_parse(store.entries[int(i)].text) for i in store.ids]
        if not records:
            return np.empty(0)
        try:
            return compare(_parse(query), records)
        except (KeyError, TypeError, ValueError) as error:
            message = f"inputs of the stream do not have the same fields ({error})"
            raise DataError(f"{message}: {query[:200]}") from error

    return similarity


def shift(
    rows: Sequence[StreamRow], components: int, seed: int, vectors: Vectors | None = None
) -> list[StreamRow]:
    """Return the rows component after component of a Gaussian mixture (appendix A.5).

    `vectors` embed the queries, shape (n, dim); without, the queries' own numbers are clustered.
    The initial memory stays first. Covariances are diagonal, as in the authors' code.
    """
    from sklearn.mixture import GaussianMixture

    known = [row for row in rows if row.output is not None]
    tasks = [row for row in rows if row.output is None]
    if not 1 <= components <= len(tasks):
        raise ConfigError(f"shift={components}: must be from 1 to the {len(tasks)} tasks.")
    if vectors is None:
        fields = [_parse(row.query).values() for row in tasks]
        vectors = np.array([np.hstack([np.array(one, float) for one in row]) for row in fields])
    mixture = GaussianMixture(components, covariance_type="diag", random_state=seed)
    order = np.argsort(mixture.fit_predict(vectors), kind="stable")
    return known + [tasks[i] for i in order]


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
    "cosine": similarity_of(cosine),
    "keys": similarity_of(lambda query, records: np.exp(minus_distance(query, records))),
    "relative": similarity_of(relative_change),
}
"""``text`` is the cosine of text embeddings, the bank's own (EHRAgent); ``keys`` AgentDriver's."""


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
