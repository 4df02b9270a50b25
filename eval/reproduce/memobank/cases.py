"""Memento's cases and DeepResearcher's questions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from atommem.envs.benchmarks.rows import read_rows
from atommem.eval.reproduce.user_files import user_file

WHERE = (
    "It is in github.com/Agent-on-the-Fly/Memento at 42fbbca (MIT), as memory/memory.jsonl and "
    "data/deepresearcher.jsonl."
)


@dataclass(frozen=True)
class Case:
    """One line of the bank: what was asked, the plan (JSON text), and whether it led to the right answer."""

    query: str
    plan: str
    positive: bool


def read_cases(folder: Path | None) -> list[Case]:
    """The bank in its order.

    Raises:
        AtomMemError: There is no such file, or it is damaged.
    """
    path = user_file(folder, ("memento/memory.jsonl", "memory/memory.jsonl", "memory.jsonl"), WHERE)
    found = []
    for row in read_rows(path):
        label = row.text("case_label")
        if label not in ("positive", "negative"):
            raise row.error("case_label", f"is {label!r}, expected positive or negative")
        found.append(Case(str(row.get("case")), str(row.get("plan")), label == "positive"))
    return found


def read_questions(folder: Path | None) -> list[tuple[str, tuple[str, ...]]]:
    """Questions with their answers, in the file's order.

    Raises:
        AtomMemError: There is no such file, or it is damaged.
    """
    places = ("memento/deepresearcher.jsonl", "data/deepresearcher.jsonl", "deepresearcher.jsonl")
    path = user_file(folder, places, WHERE)
    return [
        (str(row.get("question")), tuple(str(row.get("ground_truth")).split("<|answer_split|>")))
        for row in read_rows(path)
    ]


def is_valid_negative(case: Case) -> bool:
    """Algorithm 2: a query of at least 10 characters, and a plan with a step that has a description."""
    if len(case.query.strip()) < 10:
        return False
    try:
        plan = json.loads(case.plan)
    except ValueError:
        return False
    steps = plan.get("plan") if isinstance(plan, dict) else None
    return isinstance(steps, list) and any(isinstance(step, dict) and "description" in step for step in steps)
