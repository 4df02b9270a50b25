"""Experience across tasks: a bank of records, managed by AtomMem's admission and retention rules.

A record is an entry of a memory, and the bank's log consists of memory operations. Unlike an
episode's memory, a bank outlives its tasks (arXiv 2505.16067).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from atommem.config import check_choice
from atommem.embedding.embedder import Embedder, Vectors
from atommem.errors import ConfigError, DataError
from atommem.memory.log import (
    MEMORY,
    Contents,
    Entry,
    Operation,
    Outcome,
    Source,
)
from atommem.memory.plan import Plan
from atommem.memory.rules import Candidate, Merged, Numbers, Refused, RuleSet, StoreState
from atommem.memory.store import VectorStore, best
from papers.banks import rule_path
from papers.inputs import read_json_rows

Similarity = Callable[[str, StoreState], Numbers]
"""Similarity of a query to each record, in the order of `StoreState.ids`."""

_BATCH = 256
_SYSTEM = "bank"
_LABELS = {"positive": 1.0, "negative": 0.0}


@dataclass(frozen=True, slots=True)
class Experience:
    """A finished task.

    Attributes:
        query: The task's input, by which its record is retrieved.
        execution: The work done, shown to later tasks.
        outcome: 1 for success, 0 for failure, or between; None if unknown.
        details: Further JSON values.
    """

    query: str
    execution: str
    outcome: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether to add a record, and the task's utility from 0 to 1 (None: unknown)."""

    add: bool
    utility: float | None
    reason: str = ""


def _by_outcome(
    experience: Experience, rng: np.random.Generator, false_positive: float, false_negative: float
) -> Verdict:
    """Add successes, misread at the given rates."""
    drawn = rng.random()
    if experience.outcome is None:
        return Verdict(False, None, "unknown outcome")
    success = drawn >= false_negative if experience.outcome >= 1 else drawn < false_positive
    return Verdict(success, float(success), "" if success else f"outcome {experience.outcome:g}")


EVALUATORS: dict[str, Callable[[Experience, np.random.Generator], Verdict]] = {
    "fixed": lambda experience, rng: Verdict(False, experience.outcome, "the bank is fixed"),
    "add_all": lambda experience, rng: Verdict(True, experience.outcome),
    "noisy": partial(_by_outcome, false_positive=0.3, false_negative=0.1),
    "strict": partial(_by_outcome, false_positive=0.0, false_negative=0.0),
}
"""Which finished tasks become records (section 3 of the paper); `rng` is the bank's."""


class Bank:
    """Records of finished tasks, used by one coroutine at a time.

    A record is an `Entry`: `text` is the query, `outcome` the task's, and `details` holds
    ``execution`` and the experience's details.

    Args:
        embedder: Embeds queries.
        capacity: Maximum number of records; None is unlimited.
        admission, retention: Names of rules, with options, as for a memory.
        evaluator: A name in `EVALUATORS`.
        seed: Seed of rules and evaluators.
        newest_first: Retrieve the newest of equally similar records first.

    Attributes:
        task: Number of the current task, from 1.
    """

    def __init__(
        self,
        embedder: Embedder,
        *,
        capacity: int | None = None,
        admission: str = "accept",
        retention: str = "reject",
        evaluator: str = "add_all",
        seed: int = 0,
        newest_first: bool = False,
    ) -> None:
        if capacity is not None and capacity < 1:
            raise ConfigError(f"capacity={capacity}: must be at least 1, or None for no limit.")
        check_choice("evaluator", evaluator, tuple(EVALUATORS))
        self._embedder, self._capacity, self._seed = embedder, capacity, seed
        self._rules, self._evaluator = (
            RuleSet(rule_path(admission), rule_path(retention)),
            evaluator,
        )
        self._newest_first = newest_first
        self._contents, self._store = Contents(), VectorStore(embedder.dim)
        self._last: tuple[str, Vectors] | None = None
        self._new: list[Operation] = []
        self.task = 1

    def records(self) -> list[Entry]:
        """Return all records, oldest first."""
        return list(self._contents.entries.values())

    def __len__(self) -> int:
        return len(self._contents.entries)

    async def retrieve(
        self, query: str, k: int, similarity: Similarity | None = None
    ) -> list[tuple[Entry, float]]:
        """Return the `k` records most similar to the current task's input, best first.

        Args:
            query: The input.
            k: Number of records.
            similarity: Replaces the cosine of the vectors.
        """
        if k < 1:
            raise ConfigError(f"k={k}: must be at least 1.")
        state = self._plan(self.task).state()
        if similarity is not None:
            scores = np.asarray(similarity(query, state), dtype=np.float32)
        elif len(self):
            scores = state.vectors @ await self._vector(query)
        else:
            scores = np.empty(0, dtype=np.float32)
        if self._newest_first:
            hits = [(-negative, score) for negative, score in best(scores, -state.ids, k)]
        else:
            hits = best(scores, state.ids, k)
        # Logged at the end of the previous step, so that `last_shown` is the current task.
        self._apply(Operation(self.task - 1, "retrieve", actor=MEMORY, scores=tuple(hits)))
        self._flush()
        return [(self._contents.entries[entry_id], score) for entry_id, score in hits]

    async def end(self, experience: Experience) -> tuple[Operation, ...]:
        """Finish the current task: credit retrieved records, add one, delete; return operations.

        Raises:
            OutageError: The embedder is unreachable; the bank is unchanged.
        """
        rng = np.random.default_rng((self._seed, self._contents.position, 1))
        verdict = EVALUATORS[self._evaluator](experience, rng)
        vector = None
        if verdict.add:
            vector = await self._vector(experience.query)
            await self._rules.admission.prepare([experience.query])
        shown, utility = [entry_id for entry_id, _ in self._contents.shown], verdict.utility
        credit = Operation(self.task, "observe", actor=_SYSTEM)
        if utility is not None:
            credit = replace(credit, scores=tuple((entry_id, utility) for entry_id in shown))
        elif shown:  # rules that count use do so without an outcome too
            credit = replace(credit, details={"shown": shown})
        self._apply(credit)
        self._rules.observe(credit)
        if vector is None:
            reason = f"evaluator:{self._evaluator}: {verdict.reason}"
            self._reject(self.task, experience.query, reason=reason)
        else:
            await self._add(experience, vector, self.task)
        plan = self._plan(self.task)
        plan.sweep()
        self._take(plan)
        if self._contents.shown:  # clear what was retrieved for this task
            self._apply(Operation(self.task, "retrieve", actor=MEMORY))
        self.task += 1
        return self._flush()

    async def fill(self, experiences: Iterable[Experience]) -> None:
        """Add records of tasks outside the bank; admission rules apply, the evaluator does not."""
        items = list(experiences)
        for start in range(0, len(items), _BATCH):
            batch = items[start : start + _BATCH]
            queries = [experience.query for experience in batch]
            vectors = await self._embedder.embed(queries, "entry")
            await self._rules.admission.prepare(queries)
            for experience, vector in zip(batch, vectors, strict=True):
                await self._add(experience, vector, self.task - 1)
                self._flush()

    async def _add(self, experience: Experience, vector: Vectors, step: int) -> None:
        text, details = experience.query, {"execution": experience.execution, **experience.details}
        candidate = Candidate(
            text, vector, Source(step), outcome=experience.outcome, details=details
        )
        plan = self._plan(step)
        decision = plan.admit(candidate)
        self._take(plan)
        cause: dict[str, Any] = {"reason": decision.reason, "score": decision.score}
        if isinstance(decision, Refused):
            self._reject(step, text, actor=_SYSTEM, **cause)
            return
        if isinstance(decision, Merged):
            entry_id = decision.entry_id
            before = self._contents.entries[entry_id].text
            cause |= {"before": before, "actor": self._rules.admission_actor}
        else:
            entry_id = self._contents.newest_id + 1
            cause["actor"] = _SYSTEM
        kind: Any = "update" if isinstance(decision, Merged) else "create"
        self._apply(
            Operation(step, kind, entry_id=entry_id, after=text, details=details, **cause), vector
        )
        if experience.outcome is not None:
            scores = ((entry_id, float(experience.outcome)),)
            self._apply(Operation(step, "outcome", actor=_SYSTEM, scores=scores))

    def _reject(self, step: int, text: str, **cause: Any) -> None:
        self._apply(Operation(step, "create", Outcome.REJECTED, after=text, **cause))

    def _plan(self, step: int) -> Plan:
        contents = self._contents.copy()
        return Plan(contents, self._store, self._rules, step, self._capacity, self._seed)

    def _take(self, plan: Plan) -> None:
        self._store.update(plan.vectors)
        self._contents = plan.contents
        self._new += plan.operations

    def _apply(self, operation: Operation, vector: Vectors | None = None) -> None:
        self._contents.apply(operation)
        if vector is not None and operation.entry_id is not None:
            self._store.update({operation.entry_id: vector})
        self._new.append(operation)

    def _flush(self) -> tuple[Operation, ...]:
        operations, self._new = tuple(self._new), []
        return operations

    async def _vector(self, query: str) -> Vectors:
        if self._last is None or self._last[0] != query:
            (vector,) = await self._embedder.embed([query], "entry")
            self._last = (query, vector)
        return self._last[1]


def read_memento(path: str | Path) -> Iterator[Experience]:
    """Read a case bank of Memento (arXiv 2508.16153): ``case``, ``plan``, ``case_label`` a line.

    Raises:
        DataError: A line is not a case.
    """
    for number, row in enumerate(read_json_rows(Path(path)), start=1):
        try:
            query, plan, label = row["case"], row["plan"], _LABELS[row["case_label"]]
        except (KeyError, TypeError) as error:
            message = "needs case, plan and case_label (positive or negative)"
            raise DataError(f"{path}, row {number}: {message}.") from error
        yield Experience(str(query), plan if isinstance(plan, str) else json.dumps(plan), label)
