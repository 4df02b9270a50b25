"""The operations of a completion, decided before any of them is applied.

A plan changes nothing by itself: an error or a cancellation leaves the memory as it was.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from atommem.actions import CREATE, DELETE, READ, SCRATCHPAD, UPDATE
from atommem.embedding.embedder import Vectors
from atommem.errors import ConfigError
from atommem.memory.log import POLICY, Contents, Entry, Operation, Outcome, Source
from atommem.memory.rules import Accepted, Candidate, Eviction, Merged, Refused, RuleSet, StoreState
from atommem.memory.store import VectorStore


@dataclass(frozen=True, slots=True)
class ResolvedAction:
    """A memory action with its text cut to the limit and its handle resolved."""

    kind: str
    text: str
    handle: int | None
    entry_id: int | None
    reason: str = ""
    disabled: bool = False

    @property
    def may_store_text(self) -> bool:
        """Whether the text may become an entry's."""
        known = self.kind == UPDATE and self.entry_id is not None
        return not self.disabled and (self.kind == CREATE or known)


@dataclass(slots=True)
class Plan:
    """Operations that have been decided and not applied yet.

    `contents` (a copy) is after them, `store` before them. `vectors` has the new vector of each
    written entry by its id, None of a deleted one.
    """

    contents: Contents
    store: VectorStore
    rules: RuleSet
    step: int
    capacity: int | None
    seed: int
    source: Source | None = None
    operations: list[Operation] = field(default_factory=list)
    vectors: dict[int, Vectors | None] = field(default_factory=dict)

    def decide(
        self, actions: Iterable[ResolvedAction], vectors: Mapping[str, Vectors], actor: str = POLICY
    ) -> None:
        """Add the operations of one completion; `vectors` has its texts; `actor` creates."""
        for action in actions:
            entry = self.contents.entries.get(action.entry_id or 0)
            if action.disabled:
                self.add(action.kind, Outcome.DISABLED, handle=action.handle)
            elif action.kind == SCRATCHPAD:
                self._write(action, before=self.contents.scratchpad, after=action.text)
            elif action.kind == READ:
                self._write(action, before=self.contents.query, after=action.text or None)
            elif action.kind == CREATE:
                self._create(action, vectors[action.text], actor)
            elif entry is None:  # its handle was not shown, or it has just been deleted
                self.add(action.kind, Outcome.UNKNOWN_HANDLE, handle=action.handle)
            elif action.kind == DELETE:
                self.delete(entry, handle=action.handle)
            else:
                self._update(action, entry, vectors[action.text])
        self.sweep()

    def add(
        self,
        kind: str,
        outcome: Outcome = Outcome.APPLIED,
        *,
        vector: Vectors | None = None,
        score: float | None = None,
        **values: Any,
    ) -> None:
        """Add an operation; `vector` is that of the text it gives an entry."""
        number = None if score is None else float(score)  # a rule's may be numpy's
        operation = Operation(self.step, kind, outcome, score=number, **values)
        self.contents.apply(operation)
        self.operations.append(operation)
        if outcome is Outcome.APPLIED and operation.entry_id is not None:
            self.vectors[operation.entry_id] = vector

    def _write(self, action: ResolvedAction, **values: Any) -> None:
        self.add(action.kind, reason=action.reason, source=self.source, **values)

    def _create(self, action: ResolvedAction, vector: Vectors, by: str) -> None:
        decision = self.admit(self.candidate(action.text, vector))
        told: dict[str, Any] = {"after": action.text, "actor": by}
        if isinstance(decision, Refused):
            self.add(CREATE, Outcome.REJECTED, **told, **asdict(decision))
        elif isinstance(decision, Merged):
            entry, actor = self.contents.entries[decision.entry_id], self.rules.admission_actor
            merged = f"{actor}: {decision.reason}"
            self.add(CREATE, Outcome.MERGED, entry_id=entry.id, reason=merged, **told)
            why = {"actor": actor, "reason": decision.reason, "score": decision.score}
            self.update(entry, action.text, vector, **why)
        else:
            reason = "; ".join(filter(None, (action.reason, decision.reason)))
            told |= {"entry_id": self.contents.newest_id + 1, "source": self.source}
            self.add(CREATE, vector=vector, reason=reason, score=decision.score, **told)

    def _update(self, action: ResolvedAction, entry: Entry, vector: Vectors) -> None:
        candidate = self.candidate(action.text, vector, replaces=entry.id)
        score = self.rules.retention.rate(candidate, self.state())
        why = {"handle": action.handle, "reason": action.reason, "score": score}
        self.update(entry, action.text, vector, **why)

    def update(self, entry: Entry, text: str, vector: Vectors, **values: Any) -> None:
        values |= {"entry_id": entry.id, "before": entry.text, "after": text}
        self.add(UPDATE, vector=vector, source=self.source, **values)

    def delete(self, entry: Entry, **values: Any) -> None:
        self.add(DELETE, **{"entry_id": entry.id, "before": entry.text, **values})

    def candidate(self, text: str, vector: Vectors, replaces: int | None = None) -> Candidate:
        return Candidate(text, vector, self.source or Source(self.step), replaces=replaces)

    def state(self) -> StoreState:
        """Return the store after these operations, as rules see it."""
        seed = (self.seed, self.contents.position)
        entries = self.contents.entries
        return StoreState(entries, self.store, self.step, self.capacity, seed, self.vectors)

    def admit(self, candidate: Candidate) -> Accepted | Refused | Merged:
        """Ask the rules about a new entry, and add the evictions that make room for it.

        `Accepted` has the entry's rating as its score; the reasons of it and `Refused` name a rule.
        """
        admission, retention = self.rules.admission, self.rules.retention
        decision = admission.admit(candidate, self.state())
        if isinstance(decision, Merged):
            self._find_entry(decision.entry_id, self.rules.admission_actor)
            return decision
        reason = f"{self.rules.admission_actor}: {decision.reason}" if decision.reason else ""
        if isinstance(decision, Refused):
            return replace(decision, reason=reason)
        rating = retention.rate(candidate, self.state())
        score = decision.score if rating is None else rating
        while self.capacity is not None and len(self.contents.entries) >= self.capacity:
            eviction = retention.evict(replace(candidate, score=score), self.state())
            if eviction.entry_id is None:
                reason = f"{self.rules.retention_actor}: {eviction.reason}"
                return Refused(reason, eviction.score)
            self._evict(eviction)
        return Accepted(reason, score)

    def sweep(self) -> None:
        """Add what the retention rule deletes at the end of a step."""
        for eviction in self.rules.retention.sweep(self.state()):
            self._evict(eviction)

    def _evict(self, eviction: Eviction) -> None:
        actor = self.rules.retention_actor
        entry = self._find_entry(eviction.entry_id, actor)
        self.delete(entry, actor=actor, reason=eviction.reason, score=eviction.score)

    def _find_entry(self, entry_id: int | None, actor: str) -> Entry:
        entry = self.contents.entries.get(entry_id or 0)
        if entry is None:
            raise ConfigError(f"{actor} names entry {entry_id}, which does not exist: fix the rule")
        return entry
