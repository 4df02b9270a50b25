"""Generated rows in the form of the paper's other agents, whose data may not be shipped.

They show the format, and nothing about MIMIC-III, nuScenes and CIC-IoT2023.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from papers.streams.agents import Agent, Copier, Driver, StreamRow, Voter


@dataclass(frozen=True)
class Example:
    """An agent's rows, how like they are, and how many records it is shown."""

    rows: Callable[[int, int, int], list[StreamRow]]
    agent: Callable[[], Agent]
    similarity: str
    k: int


def _records(seed: int, initial: int, tasks: int) -> list[StreamRow]:
    """Make questions about patients' records, answered by code (EHRAgent)."""
    rng = Random(f"ehr:{seed}")
    tables = ["admissions", "prescriptions", "lab results", "procedures", "diagnoses", "transfers"]
    kinds = [
        "How many {table} does patient {n} have in year {y}?",
        "When was the last of the {table} of patient {n}?",
    ]
    rows = []
    for i in range(initial + tasks):
        table, kind = rng.choice(tables), rng.randrange(2)
        query = kinds[kind].format(
            table=table, n=rng.randrange(100, 999), y=rng.randrange(2100, 2110)
        )
        truth = f"{('count', 'latest')[kind]}(load('{table}'))"
        wrong = (
            f"{('count', 'latest')[kind]}(load('{rng.choice(tables)}'))"
            if rng.random() < 0.1
            else truth
        )
        rows.append(StreamRow(query, truth, wrong if i < initial else None))
    return rows


def _driving(seed: int, initial: int, tasks: int) -> list[StreamRow]:
    """Make ego state, goal and history, and the trajectory of six points (AgentDriver)."""
    rng = np.random.default_rng([seed, 1])
    turn = rng.normal(size=(13, 12))
    rows = []
    for i in range(initial + tasks):
        ego, goal, past = (
            rng.normal(size=(3, 3)).ravel() * 0.3,
            rng.normal(size=2) * 0.3,
            rng.normal(size=2) * 0.3,
        )
        query = json.dumps({"ego": ego.tolist(), "goal": goal.tolist(), "history": past.tolist()})
        truth = (np.concatenate([ego, goal * 4, past]) @ turn).reshape(6, 2).round(3)
        noisy = (truth + rng.normal(size=truth.shape)).round(3).tolist()
        rows.append(StreamRow(query, truth.tolist(), json.dumps(noisy) if i < initial else None))
    return rows


def _traffic(seed: int, initial: int, tasks: int) -> list[StreamRow]:
    """Make flow features of eight classes; a fifth of the initial ones is wrong (CIC-IoT)."""
    rng = np.random.default_rng([seed, 2])
    centres = rng.lognormal(0, 1, (8, 10))
    rows = []
    for i in range(initial + tasks):
        kind = int(rng.integers(8))
        values = centres[kind] * rng.lognormal(0, 0.6, 10)
        query = json.dumps(
            {f"feature_{j}": float(round(value, 3)) for j, value in enumerate(values)}
        )
        said = int(rng.integers(8)) if rng.random() < 0.2 else kind
        rows.append(StreamRow(query, f"class {kind}", f"class {said}" if i < initial else None))
    return rows


EXAMPLES = {
    "ehragent": Example(_records, Copier, "text", 4),
    "agentdriver": Example(_driving, Driver, "keys", 1),
    "ciciot": Example(_traffic, Voter, "relative", 3),
}


def as_lines(rows: Sequence[StreamRow]) -> str:
    """The stream's file."""
    lines = []
    for row in rows:
        fields = {
            "query": row.query,
            "truth": row.truth,
            **({} if row.output is None else {"output": row.output}),
        }
        lines.append(json.dumps(fields))
    return "\n".join(lines) + "\n"
