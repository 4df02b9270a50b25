"""What an agent on a stream is, and one that copies: for the examples, and to begin with."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from atommem.memory.log import Entry


@dataclass(frozen=True)
class StreamRow:
    """One line of a stream: JSON Lines of objects with these fields.

    Attributes:
        query: The task's input: a text, or a JSON object (kept as its text).
        truth: What is right, as the agent's `score` understands it.
        output: Of a record to begin with: what was done; None of a task.
    """

    query: str
    truth: Any
    output: str | None = None


class Agent(Protocol):
    """Found by ``package.module:Class``, made without arguments; one task at a time."""

    async def act(self, row: StreamRow, shown: Sequence[tuple[Entry, float]]) -> str:
        """Do the task with the retrieved records, best first (`executions`)."""
        ...

    def score(self, row: StreamRow, output: str) -> Mapping[str, Any]:
        """Return ``outcome`` (1 success, 0 failure), and optionally an ``error``."""
        ...


def executions(shown: Sequence[tuple[Entry, float]]) -> list[str]:
    """What the shown records did."""
    return [(record.details or {}).get("execution", "") for record, _ in shown]


class Copier:
    """Repeats the most similar record, as EHRAgent's follower would; exact match."""

    async def act(self, row: StreamRow, shown: Sequence[tuple[Entry, float]]) -> str:
        """Nothing, where nothing is shown."""
        return executions(shown)[0] if shown else ""

    def score(self, row: StreamRow, output: str) -> Mapping[str, Any]:
        """Exact match."""
        return {"outcome": float(output == row.truth)}


class Voter(Copier):
    """Answers the majority class of the records, as a classifier of traffic."""

    async def act(self, row: StreamRow, shown: Sequence[tuple[Entry, float]]) -> str:
        """By majority."""
        counts = Counter(executions(shown))
        return counts.most_common(1)[0][0] if counts else ""


class Driver(Copier):
    """Copies the most similar trajectory; right within a mean distance of 2.5 (UniAD)."""

    tolerance = 2.5

    def score(self, row: StreamRow, output: str) -> Mapping[str, Any]:
        """``error`` is the mean distance."""
        if not output:
            return {"outcome": 0.0, "error": 1e9}
        gap = np.asarray(json.loads(output)) - np.asarray(row.truth)
        error = float(np.mean(np.linalg.norm(gap, axis=-1)))
        return {"outcome": float(error < self.tolerance), "error": error}
