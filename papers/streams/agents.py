"""Agents and similarities of inputs for streams of tasks (arXiv 2505.16067)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from atommem.errors import DataError
from atommem.memory.log import Entry
from atommem.memory.rules import Numbers, StoreState
from papers.experience import Similarity

Shown = Sequence[tuple[Entry, float]]
"""Retrieved records with their similarity, best first."""
Input = Mapping[str, Any]


@dataclass(frozen=True)
class StreamRow:
    """One line of a stream.

    Attributes:
        query: The task's input: a text, or a JSON object as its text.
        truth: The right result, as the agent's `score` understands it.
        output: The work done, in a record of the initial memory; None for a task.
    """

    query: str
    truth: Any
    output: str | None = None


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
