"""Experience across tasks: a bank of records, managed by AtomMem's admission and retention rules.

A record is an entry of a memory, and the bank's log consists of memory operations. Unlike an
episode's memory, a bank outlives its tasks (arXiv 2505.16067).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atommem.embedding.embedder import Embedder, Vectors
from atommem.errors import ConfigError
from atommem.memory.log import MEMORY, Contents, Entry, Operation, Outcome, Source
from atommem.memory.plan import Plan
from atommem.memory.rules import Candidate, Merged, Numbers, Refused, RuleSet, StoreState
from atommem.memory.store import VectorStore, best
from papers.banks import rule_path

Similarity = Callable[[str, StoreState], Numbers]
"""Similarity of a query to each record, in the order of `StoreState.ids`."""

_BATCH = 256
_SYSTEM = "bank"


@dataclass(frozen=True, slots=True)
class Experience:
    """A finished task."""

    query: str  # by which its record is retrieved
    execution: str  # the work done, shown to later tasks
    outcome: float | None = None  # from 0 (failure) to 1 (success); None if unknown
    details: Mapping[str, Any] = field(default_factory=dict)  # JSON values


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether to add a record, and the task's utility from 0 to 1 (None: unknown)."""

    add: bool
    utility: float | None
    reason: str = ""


class Bank:
    """Records of finished tasks, used by one coroutine at a time.

    A record is an `Entry`: `text` is the query, `outcome` the task's, and `details` holds
    ``execution`` and the experience's details.

    Args:
        embedder: Embeds queries.
        capacity: Maximum number of records; None is unlimited.
        admission, retention: Names of rules, with options, as for a memory.
        seed: Seed of rules.
        newest_first: Retrieve the newest of equally similar records first.
    """

    def __init__(
        self,
        embedder: Embedder,
        *,
        capacity: int | None = None,
        admission: str = "accept",
        retention: str = "reject",
        seed: int = 0,
        newest_first: bool = False,
    ) -> None:
        if capacity is not None and capacity < 1:
            raise ConfigError(f"capacity={capacity}: must be at least 1, or None for no limit.")
        self._embedder, self._capacity, self._seed = embedder, capacity, seed
        self._rules = RuleSet(rule_path(admission), rule_path(retention))
        self._newest_first = newest_first
        self._contents, self._store = Contents(), VectorStore(embedder.dim)
        self._last: tuple[str, Vectors] | None = None
        self.task = 1  # the current one

    def records(self) -> list[Entry]:
        """Return all records, oldest first."""
        return list(self._contents.entries.values())

    def __len__(self) -> int:
        return len(self._contents.entries)

    async def retrieve(
        self, query: str, k: int, similarity: Similarity | None = None
    ) -> list[tuple[Entry, float]]:
        """Return the `k` records most similar to the current task's input, best first.

        `similarity` replaces the cosine of the vectors.
        """
        if k < 1:
            raise ConfigError(f"k={k}: must be at least 1.")
        plan = self._plan(self.task)
        state = plan.state()
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
        plan.step -= 1  # the end of the previous task, so that `last_shown` is the current one
        plan.add("retrieve", actor=MEMORY, scores=tuple(hits))
        self._apply(plan)
        return [(self._contents.entries[entry_id], score) for entry_id, score in hits]

    async def end(
        self, experience: Experience, verdict: Verdict | None = None
    ) -> tuple[Operation, ...]:
        """Finish the current task: credit retrieved records, add one, delete; return operations.

        Without a `verdict` all are added. After an `OutageError` of the embedder the bank is
        unchanged.
        """
        verdict = verdict or Verdict(True, experience.outcome)
        vector = None
        if verdict.add:
            vector = await self._vector(experience.query)
            await self._rules.admission.prepare([experience.query])
        shown, utility = [entry_id for entry_id, _ in self._contents.shown], verdict.utility
        plan = self._plan(self.task)
        # Rules that count use do so without an outcome too.
        details = {"shown": shown} if shown and utility is None else None
        scores = () if utility is None else tuple((entry_id, utility) for entry_id in shown)
        plan.add("observe", actor=_SYSTEM, scores=scores, details=details)
        self._rules.observe(plan.operations[-1])
        if vector is None:
            after, reason = experience.query, verdict.reason
            plan.add("create", Outcome.REJECTED, after=after, reason=reason)
        else:
            self._add(plan, experience, vector)
        plan.sweep()
        if plan.contents.shown:  # clear what was retrieved for this task
            plan.add("retrieve", actor=MEMORY)
        self.task += 1
        return self._apply(plan)

    async def fill(self, experiences: Iterable[Experience]) -> None:
        """Add records of tasks outside the bank; admission rules apply."""
        items = list(experiences)
        for start in range(0, len(items), _BATCH):
            batch = items[start : start + _BATCH]
            queries = [experience.query for experience in batch]
            vectors = await self._embedder.embed(queries, "entry")
            await self._rules.admission.prepare(queries)
            for experience, vector in zip(batch, vectors, strict=True):
                plan = self._plan(self.task - 1)
                self._add(plan, experience, vector)
                self._apply(plan)

    def _add(self, plan: Plan, experience: Experience, vector: Vectors) -> None:
        text, details = experience.query, {"execution": experience.execution, **experience.details}
        source, outcome = Source(plan.step), experience.outcome
        candidate = Candidate(text, vector, source, outcome=outcome, details=details)
        decision = plan.admit(candidate)
        values: dict[str, Any] = {"reason": decision.reason, "score": decision.score, "after": text}
        if isinstance(decision, Refused):
            plan.add("create", Outcome.REJECTED, actor=_SYSTEM, **values)
            return
        kind, values["actor"], entry_id = "create", _SYSTEM, plan.contents.newest_id + 1
        if isinstance(decision, Merged):
            kind, values["actor"] = "update", self._rules.admission_actor
            entry_id = decision.entry_id
            values["before"] = plan.contents.entries[entry_id].text
        plan.add(kind, vector=vector, entry_id=entry_id, details=details, **values)
        if outcome is not None:
            plan.add("outcome", actor=_SYSTEM, scores=((entry_id, float(outcome)),))

    def _plan(self, step: int) -> Plan:
        contents = self._contents.copy()
        return Plan(contents, self._store, self._rules, step, self._capacity, self._seed)

    def _apply(self, plan: Plan) -> tuple[Operation, ...]:
        self._store.update(plan.vectors)
        self._contents = plan.contents
        return tuple(plan.operations)

    async def _vector(self, query: str) -> Vectors:
        if self._last is None or self._last[0] != query:
            (vector,) = await self._embedder.embed([query], "entry")
            self._last = (query, vector)
        return self._last[1]
