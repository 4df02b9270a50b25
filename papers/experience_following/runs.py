"""One arm of one agent: played task by task into a file, resumed from it, and read back."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atommem.config import check_choice
from atommem.errors import ConfigError
from atommem.memory.log import Entry
from papers.experience import Bank, Experience, Verdict
from papers.experience_following.agents import MISREADS, Agent
from papers.experiment import Journal
from papers.streams import Shown, StreamRow

EVALUATORS = ("fixed", "add all", "C1", "C2", "C3", "strict")
DELETIONS = ("none", "periodic", "history", "combined", "constrained")


@dataclass(frozen=True)
class Arm:
    """How a memory is managed, by its name: ``strict, history, n 10`` or ``C1, error-free``."""

    name: str
    evaluator: str
    deletion: str
    error_free: bool
    changes: Mapping[str, float]  # of the agent's settings; also limit and shift

    @classmethod
    def parse(cls, name: str) -> Arm:
        """Read a name; raises ConfigError."""
        evaluator, *parts = name.split(", ")
        check_choice("arm", evaluator, EVALUATORS)
        deletion, error_free, changes = "none", False, {}
        for part in parts:
            key, _, value = part.partition(" ")
            if part in DELETIONS:
                deletion = part
            elif part == "error-free":
                error_free = True
            else:
                check_choice("arm", key, ("k", "n", "beta", "period", "limit", "shift"))
                changes[key] = float(value) if key == "beta" else int(value)
        return cls(name, evaluator, deletion, error_free, changes)

    def retention(self, settings: Mapping[str, Any]) -> str:
        """Return the bank's rule under an agent's settings."""
        beta = settings["beta"]
        if self.evaluator in MISREADS and "beta" not in self.changes:
            beta = settings["coarse_beta"][list(MISREADS).index(self.evaluator)]
        period = "period={period}, alpha={alpha}".format(**settings)
        history = "n={n}, at_least={at_least}".format(**settings).lower() + f", beta={beta}"
        limit = settings.get("limit", settings["initial"])
        return {
            "none": "fifo",
            "periodic": f"periodic({period})",
            "history": f"history({history})",
            "combined": f"combined({period}, {history})",
            "constrained": f"constrained(limit={limit}, {period})",
        }[self.deletion]

    def file(self, folder: Path) -> Path:
        """Return the arm's file in the folder of an agent's runs."""
        return folder / (re.sub(r"[ ,]+", "-", self.name) + ".jsonl")


async def play(
    agent: Agent,
    arm: Arm,
    rows: Sequence[StreamRow],
    journal: Journal,
    base: Run | None = None,
) -> None:
    """Do all tasks of `rows` that `journal` lacks, and add them to it.

    `base` is the run whose retrievals an error-free arm repeats, with right outputs as records.
    """
    settings = {**agent.settings, **arm.changes}
    known = [row for row in rows if row.output is not None]
    tasks = [row for row in rows if row.output is None]
    bank = Bank(agent.embedder, retention=arm.retention(settings))
    await bank.fill(
        Experience(row.query, row.output or "", 1.0, {"origin": i - len(known)})
        for i, row in enumerate(known)
    )
    origins = {record.id: _origin(record) for record in bank.records()}
    for number, row in enumerate(tasks):
        name = str(number)
        if base is not None:
            if name not in journal:
                shown = _right_records(agent, base.lines[number], tasks, known)
                journal.add(name, await _step(agent, arm, row, shown, number))
            continue
        shown = await bank.retrieve(row.query, settings["k"], agent.similarity)
        line = journal.get(name) or await _step(agent, arm, row, shown, number)
        done = Experience(row.query, line["output"], line["outcome"], {"origin": number})
        operations = await bank.end(done, Verdict(line["add"], line["utility"], "not added"))
        line["deleted"] = [origins[one.entry_id or 0] for one in operations if one.kind == "delete"]
        if line["add"]:
            origins[next(one.entry_id or 0 for one in operations if one.kind == "create")] = number
        if name not in journal:
            journal.add(name, line)


async def _step(
    agent: Agent, arm: Arm, row: StreamRow, shown: Shown, number: int
) -> dict[str, Any]:
    """Return a task's line: what was shown and done, and how it is judged."""
    output = await agent.act(row, shown, f"{agent.seed}/{number}")
    scored = agent.score(row, output)
    add, utility = arm.evaluator != "fixed", agent.utility(scored)
    if arm.evaluator == "strict":
        add = scored["outcome"] >= 1
    elif arm.evaluator in MISREADS:
        add = await agent.passes(arm.evaluator, row, output, scored, number)
        utility = float(add)
    first = shown[0] if shown else None
    record = (first[0].details or {})["execution"] if first else ""
    return {
        "output": output,
        **scored,
        "add": add,
        "utility": utility,
        "shown": [_origin(entry) for entry, _ in shown],
        "near": agent.input_similarity(first[1]) if first else 0.0,
        "alike": await agent.output_similarity(output, record) if first else 0.0,
    }


def _origin(entry: Entry) -> int:
    """Return the task of a record; below 0 in the initial memory."""
    return int((entry.details or {})["origin"])


def _right_records(
    agent: Agent, line: Mapping[str, Any], tasks: Sequence[StreamRow], known: Sequence[StreamRow]
) -> Shown:
    rows = [(known if origin < 0 else tasks)[origin] for origin in line["shown"]]
    scores = [line["near"]] * len(rows)
    if any(agent.true_output(row) is None for row in rows):
        raise ConfigError(f"agent={agent.name}: has no right outputs for error-free records.")
    return [
        (Entry(0, row.query, 0, 0, details={"execution": agent.true_output(row), "origin": i}), s)
        for row, i, s in zip(rows, line["shown"], scores, strict=True)
    ]


class Run:
    """A saved run."""

    def __init__(self, arm: Arm, journal: Mapping[str, Any]) -> None:
        self.arm, self.settings = arm, journal["settings"]
        found = [journal.get(str(i)) for i in range(self.settings["tasks"])]
        self.lines: list[dict[str, Any]] = [line for line in found if line is not None]

    @property
    def is_whole(self) -> bool:
        """Whether every task was done."""
        return len(self.lines) == self.settings["tasks"]

    def column(self, name: str) -> npt.NDArray[np.float64]:
        """Return a value of each task, shape (n,)."""
        return np.array([line[name] for line in self.lines], dtype=float)

    def running(self, name: str) -> npt.NDArray[np.float64]:
        """Return the mean of a value over all tasks up to each, shape (n,)."""
        return np.cumsum(self.column(name)) / np.arange(1, len(self.lines) + 1)

    @property
    def size(self) -> int | None:
        """Number of records at the end; None of an error-free run, which has no bank."""
        if self.arm.error_free:
            return None
        deleted = sum(len(line["deleted"]) for line in self.lines)
        return int(self.settings["initial"] + sum(line["add"] for line in self.lines) - deleted)

    @property
    def r(self) -> float | None:
        """Pearson's r of the running means of input and output similarity."""
        near, alike = self.running("near"), self.running("alike")
        if len(near) < 3 or np.ptp(near) == 0 or np.ptp(alike) == 0:
            return None
        return float(np.corrcoef(near, alike)[0, 1])

    @cached_property
    def _uses(self) -> Counter[int]:
        return Counter(origin for line in self.lines for origin in line["shown"])

    def records(self, deleted: bool, name: str, least_uses: int = 0) -> list[float]:
        """Return ``error`` or ``outcome`` of deleted or retained records with so many uses."""
        gone = {origin for line in self.lines for origin in line["deleted"]}
        added = {number for number, line in enumerate(self.lines) if line["add"]}
        added |= set(range(-len(self.settings["known"]), 0))
        chosen = sorted(added & gone if deleted else added - gone)
        scored = [(self.settings["known"] if one < 0 else self.lines)[one] for one in chosen]
        return [
            float(line[name])
            for one, line in zip(chosen, scored, strict=True)
            if name in line and self._uses[one] >= least_uses
        ]
