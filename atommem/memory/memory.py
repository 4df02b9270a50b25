"""A memory at work: `decide` plans the operations of a completion, `WorkingMemory.apply` does them.

Texts are embedded before anything is decided. A plan changes nothing by itself, so an error or a
cancellation in the middle of a completion leaves the memory as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np

from atommem.actions import CREATE, DELETE, MEMORY_KINDS, READ, SCRATCHPAD, UPDATE, Action
from atommem.config import MemoryConfig
from atommem.embedding.embedder import Embedder, Vectors
from atommem.errors import ConfigError
from atommem.memory.log import (
    BETWEEN,
    MEMORY,
    POLICY,
    USER,
    Contents,
    Entry,
    MemoryView,
    Operation,
    Outcome,
    Snapshot,
    Source,
    replay,
)
from atommem.memory.rules import (
    Accepted,
    Admission,
    Candidate,
    Eviction,
    Merged,
    Refused,
    RuleSet,
    StoreState,
)
from atommem.memory.store import (
    TextVectors,
    VectorStore,
    check_vectors,
    digests_of,
    embed_texts,
)
from atommem.process import ActivityClock
from atommem.tokens import Tokenizer, cut_to_tokens

CUT = "cut"


@dataclass(frozen=True, slots=True)
class Write:
    """A memory action with its text cut to the limit and its handle resolved."""

    action: Action
    text: str
    entry_id: int | None = None
    disabled: bool = False

    @property
    def reason(self) -> str:
        """``cut`` if the text exceeded its limit."""
        return "" if self.text == self.action.text else CUT

    @property
    def is_stored(self) -> bool:
        """Whether the text may become an entry's."""
        kind = self.action.kind
        return kind == CREATE or (kind == UPDATE and self.entry_id is not None)


class Text(NamedTuple):
    """A text within its limit, with its vector."""

    text: str
    vector: Vectors


@dataclass(slots=True)
class Plan:
    """Operations that have been decided and not applied yet.

    Attributes:
        contents: A copy of the memory's contents, after the operations.
        store: The memory's store, before the operations.
        step, capacity, seed: Those that rules see.
        actor, source: Of the operations, except for those of rules.
        operations: In order.
        vectors: By entry id: the new vector of each entry that was written, None if it was deleted.
        missing: A text without a vector; the plan ends before the operation that needs it.
    """

    contents: Contents
    store: VectorStore
    step: int
    capacity: int | None
    seed: int
    actor: str = POLICY
    source: Source | None = None
    operations: list[Operation] = field(default_factory=list)
    vectors: dict[int, Vectors | None] = field(default_factory=dict)
    missing: str | None = None

    def add(
        self,
        kind: str,
        outcome: Outcome = Outcome.APPLIED,
        *,
        vector: Vectors | None = None,
        **values: Any,
    ) -> None:
        """Add an operation; `vector` is that of the text it gives an entry."""
        operation = Operation(self.step, kind, outcome, **{"actor": self.actor, **values})
        self.contents.apply(operation)
        self.operations.append(operation)
        if outcome is Outcome.APPLIED and operation.entry_id is not None:
            self.vectors[operation.entry_id] = vector

    def candidate(self, text: Text, replaces: int | None = None) -> Candidate:
        """Return a text as rules see it."""
        return Candidate(*text, self.source or Source(self.step), replaces=replaces)

    def state(self) -> StoreState:
        """Return the store after these operations, as rules see it."""
        seed = (self.seed, self.contents.position)
        entries, capacity = self.contents.entries, self.capacity
        return StoreState(entries, self.store, self.step, capacity, seed, self.vectors)


def decide(plan: Plan, writes: Sequence[Write], texts: Mapping[str, Text], rules: RuleSet) -> Plan:
    """Return `plan` with the operations that the actions of one completion lead to.

    Args:
        plan: An empty plan.
        writes: In the order in which they were written.
        texts: By the text that was asked for: every text that may be stored.
        rules: Decide on creates, and sweep at the end.
    """
    for write in writes:
        kind, handle = write.action.kind, write.action.handle
        if write.disabled:
            plan.add(kind, Outcome.DISABLED, handle=handle)
        elif kind == CREATE:
            _create(plan, write, texts, rules)
        elif kind in (SCRATCHPAD, READ):
            contents, after = plan.contents, write.text
            values = (
                {"before": contents.query, "after": after or None}
                if kind == READ
                else {"before": contents.scratchpad, "after": after}
            )
            plan.add(kind, reason=write.reason, source=plan.source, **values)
        else:
            _change(plan, write, texts, rules)
        if plan.missing is not None:
            return plan
    sweep(plan, rules)
    return plan


def _create(plan: Plan, write: Write, texts: Mapping[str, Text], rules: RuleSet) -> None:
    new = texts[write.text]
    decision = admit(plan, rules, plan.candidate(new))
    if isinstance(decision, Refused):
        why: dict[str, Any] = {"reason": decision.reason, "score": decision.score}
        plan.add(CREATE, Outcome.REJECTED, after=new.text, **why)
    elif isinstance(decision, Accepted):
        plan.add(
            CREATE,
            vector=new.vector,
            entry_id=plan.contents.newest_id + 1,
            after=new.text,
            reason="; ".join(filter(None, (write.reason, decision.reason))),
            score=decision.score,
            source=plan.source,
        )
    elif decision.text is not None and decision.text not in texts:
        plan.missing = decision.text
    else:
        merged = new if decision.text is None else texts[decision.text]
        entry, actor = plan.contents.entries[decision.entry_id], rules.admission_actor
        reason = f"{actor}: {decision.reason}"
        plan.add(CREATE, Outcome.MERGED, entry_id=entry.id, after=new.text, reason=reason)
        plan.add(
            UPDATE,
            vector=merged.vector,
            entry_id=entry.id,
            before=entry.text,
            after=merged.text,
            actor=actor,
            reason=decision.reason,
            score=decision.score,
            source=plan.source,
        )


def _change(plan: Plan, write: Write, texts: Mapping[str, Text], rules: RuleSet) -> None:
    """Update or delete an entry, which may have gone earlier in the same completion."""
    kind, handle = write.action.kind, write.action.handle
    entry = None if write.entry_id is None else plan.contents.entries.get(write.entry_id)
    if entry is None:
        plan.add(kind, Outcome.UNKNOWN_HANDLE, handle=handle)
    elif kind == DELETE:
        plan.add(kind, entry_id=entry.id, handle=handle, before=entry.text)
    else:
        new = texts[write.text]
        rating = rules.retention.rate(plan.candidate(new, entry.id), plan.state())
        plan.add(
            kind,
            vector=new.vector,
            entry_id=entry.id,
            handle=handle,
            before=entry.text,
            after=new.text,
            reason=write.reason,
            score=_number(rating),
            source=plan.source,
        )


def admit(plan: Plan, rules: RuleSet, candidate: Candidate) -> Admission:
    """Ask the rules about a new entry, and add the evictions that make room for it.

    Returns:
        `Accepted`: there is room, and its score is the entry's rating. `Refused`: by either rule,
        which the reason names. `Merged`: its text still needs to be cut and embedded.

    Raises:
        ConfigError: A rule names an entry that does not exist.
    """
    decision = rules.admission.admit(candidate, plan.state())
    decision = replace(decision, score=_number(decision.score))
    if isinstance(decision, Merged):
        _check_entry(plan, rules.admission_actor, decision.entry_id)
        return decision
    if isinstance(decision, Refused):
        return replace(decision, reason=f"{rules.admission_actor}: {decision.reason}")
    rating = _number(rules.retention.rate(candidate, plan.state()))
    score = decision.score if rating is None else rating
    candidate = replace(candidate, score=score)
    while plan.capacity is not None and len(plan.contents.entries) >= plan.capacity:
        eviction = rules.retention.evict(candidate, plan.state())
        if eviction.entry_id is None:
            reason = f"{rules.retention_actor}: {eviction.reason}"
            return Refused(reason, _number(eviction.score))
        _evict(plan, rules, eviction)
    reason = f"{rules.admission_actor}: {decision.reason}" if decision.reason else ""
    return Accepted(reason, score)


def sweep(plan: Plan, rules: RuleSet) -> None:
    """Add what the retention rule deletes at the end of a step.

    Raises:
        ConfigError: The rule names an entry that does not exist.
    """
    for eviction in rules.retention.sweep(plan.state()):
        _evict(plan, rules, eviction)


def _evict(plan: Plan, rules: RuleSet, eviction: Eviction) -> None:
    entry = _check_entry(plan, rules.retention_actor, eviction.entry_id)
    why: dict[str, Any] = {"reason": eviction.reason, "score": _number(eviction.score)}
    actor = rules.retention_actor
    plan.add(DELETE, entry_id=entry.id, before=entry.text, actor=actor, **why)


def _check_entry(plan: Plan, actor: str, entry_id: int | None) -> Entry:
    entry = plan.contents.entries.get(entry_id or 0)
    if entry is None:
        raise ConfigError(f"{actor} names entry {entry_id}, which does not exist: fix the rule.")
    return entry


def _number(score: float | None) -> float | None:
    """Convert a rule's numpy score to a JSON number."""
    return None if score is None else float(score)


class WorkingMemory:
    """The memory of one episode or session: contents by the log, vectors in a store.

    A new one is empty; `restore` loads a saved one. One coroutine may use it at a time.

    Args:
        embedder: Shared by all episodes in flight; it batches across them.
        tokenizer: Measures scratchpad, query and entries.
        config: Limits, rules and disabled actions.
        cut_marker: Ends a text that was cut to its limit.
        activity: Measures the time of ``embed`` and ``retrieve``.
        seed: Seeds the random numbers of rules.

    Raises:
        ConfigError: A rule does not exist.
    """

    def __init__(
        self,
        embedder: Embedder,
        tokenizer: Tokenizer,
        config: MemoryConfig,
        cut_marker: str = "",
        activity: ActivityClock | None = None,
        seed: int = 0,
    ) -> None:
        self._embedder, self._tokenizer, self._config = embedder, tokenizer, config
        self._cut_marker, self._activity = cut_marker, activity or ActivityClock()
        self._rules = RuleSet(config.admission, config.retention)
        self._start = Snapshot(embedder.id, Contents(), seed)
        self._contents, self._log = Contents(), list[Operation]()
        self._store = VectorStore(embedder.dim)
        self._query_vector: Vectors | None = None
        self._view = self._contents.view(config.capacity)

    @property
    def start(self) -> Snapshot:
        """The beginning of the log: an empty memory, or the restored snapshot."""
        return self._start

    @property
    def log(self) -> tuple[Operation, ...]:
        """All operations since `start`."""
        return tuple(self._log)

    @property
    def contents(self) -> Contents:
        """The present contents, read-only."""
        return self._contents

    def entries(self) -> list[Entry]:
        """Return all entries, oldest first."""
        return list(self._contents.entries.values())

    def view(self) -> MemoryView:
        """Return what the policy sees."""
        return self._view

    async def apply(
        self,
        actions: Sequence[Action],
        step: int,
        source: Source | None = None,
        actor: str = POLICY,
    ) -> tuple[Operation, ...]:
        """Apply the memory actions of one completion in order; other actions are ignored.

        Handles are those of `view()` before this call; a read takes effect in the view after it. If
        this raises or is cancelled, the memory is unchanged.

        Args:
            actions: As parsed.
            step: The number of the step; it must not decrease.
            source: The origin of the texts.
            actor: The writer.

        Returns:
            One operation for each memory action, those of the rules, and the retrieval.

        Raises:
            OutageError: The embedder is out of reach.
            ConfigError: A rule names an entry that does not exist.
        """
        writes = self._resolve(actions)
        stored = [write for write in writes if write.is_stored and not write.disabled]
        reads = [write for write in writes if write.action.kind == READ and not write.disabled]
        query = (reads[-1].text or None) if reads else self._contents.query
        texts, query_vector = await asyncio.gather(
            self._embed([write.text for write in stored]), self._embed_query(query)
        )
        creates = [write.text for write in stored if write.action.kind == CREATE]
        await self._rules.admission.prepare(creates)
        while True:
            with self._activity.busy("retrieve"):
                plan = decide(self._plan(step, actor, source), writes, texts, self._rules)
                if plan.missing is None:
                    return self._commit(plan, query_vector, bool(reads))
            merged = self._cut(plan.missing, self._config.entry_tokens)
            texts[plan.missing] = (await self._embed([merged]))[merged]

    async def edit(
        self, entry_id: int, text: str | None, step: int, actor: str = USER
    ) -> tuple[Operation, ...]:
        """Replace the text of an entry, or delete the entry, as another actor than the policy.

        Args:
            entry_id: The entry.
            text: Cut to its limit; None deletes the entry.
            step: The latest step.
            actor: The writer.

        Raises:
            ConfigError: The entry does not exist.
            OutageError: The embedder is out of reach; the memory is unchanged.
        """
        entry = self._contents.entries.get(entry_id)
        if entry is None:
            raise ConfigError(f"entry {entry_id} does not exist in this memory.")
        query_vector = await self._embed_query(self._contents.query)
        plan = self._plan(step, actor, Source(step))
        if text is None:
            plan.add(DELETE, entry_id=entry_id, before=entry.text)
        else:
            text = self._cut(text, self._config.entry_tokens)
            vector = (await self._embed([text]))[text].vector
            change: dict[str, Any] = {"before": entry.text, "after": text, "source": plan.source}
            plan.add(UPDATE, vector=vector, entry_id=entry_id, **change)
        return self._commit(plan, query_vector)

    async def forget(
        self, piece: str, step: int, actor: str = USER, *, read: Container[int] | None = None
    ) -> tuple[Operation, ...]:
        """Delete what was written while `piece` was shown, also among the results of a search.

        An entry goes if any of its texts came from there, even if it was rewritten since. The
        scratchpad and the query are emptied if one of their texts since they were last empty came
        from there. Texts from before the beginning of the log are known by their latest source.

        Args:
            piece: The name of a source; its parts (``URL, part 2/3``) are included.
            step: The latest step.
            actor: The writer.
            read: The steps that showed it, if other texts have the same name; None for all.

        Returns:
            The operations; none if nothing came from there.
        """

        def matches(source: Source | None) -> bool:
            if source is None or source.piece is None:
                return False
            if read is not None and source.step not in read:
                return False
            names = [source.piece, *source.piece.split(BETWEEN)]
            return any(name == piece or name.startswith(f"{piece}, ") for name in names)

        contents = self._contents
        found = {entry.id for entry in contents.entries.values() if matches(entry.source)}
        emptied: set[str] = set()
        for operation in self._log:
            if operation.outcome is not Outcome.APPLIED:
                continue
            if operation.kind in (SCRATCHPAD, READ):
                if not operation.after:
                    emptied.discard(operation.kind)
                elif matches(operation.source):
                    emptied.add(operation.kind)
            elif operation.entry_id is not None and matches(operation.source):
                found.add(operation.entry_id)
        found &= contents.entries.keys()
        if not found and not emptied:
            return ()
        query_vector = await self._embed_query(None if READ in emptied else contents.query)
        plan, reason = self._plan(step, actor), f"forget {piece}"
        for entry_id in sorted(found):
            before = contents.entries[entry_id].text
            plan.add(DELETE, entry_id=entry_id, before=before, reason=reason)
        if SCRATCHPAD in emptied:
            plan.add(SCRATCHPAD, before=contents.scratchpad, after="", reason=reason)
        if READ in emptied:
            plan.add(READ, before=contents.query, reason=reason)
        return self._commit(plan, query_vector)

    async def search(self, query: str, k: int | None = None) -> list[tuple[Entry, float]]:
        """Return the entries most similar to a text, best first; the log does not change.

        Args:
            query: Cut to the limit of queries.
            k: The number of entries; None for as many as the policy is shown.

        Raises:
            OutageError: The embedder is out of reach.
        """
        text = self._cut(query, self._config.query_tokens)
        vector = await self._embed_query(text or None)
        if vector is None:
            return []
        hits = self._store.search(vector, k or self._config.retrieve_k)
        return [(self._contents.entries[entry_id], score) for entry_id, score in hits]

    def record_outcome(
        self, outcome: float, step: int, entry_ids: Iterable[int] | None = None
    ) -> Operation:
        """Log the reward of the writers of entries; by default of those without an outcome."""
        if entry_ids is None:
            entry_ids = [entry.id for entry in self.entries() if entry.outcome is None]
        return self._log_scores("outcome", step, outcome, entry_ids)

    def observe(
        self, outcome: float, step: int, entry_ids: Iterable[int] | None = None
    ) -> Operation:
        """Log the outcome of a task that entries were shown for; by default those shown now."""
        if entry_ids is None:
            entry_ids = [entry_id for entry_id, _ in self._contents.shown]
        operation = self._log_scores("observe", step, outcome, entry_ids)
        self._rules.observe(operation)
        return operation

    def snapshot(self) -> Snapshot:
        """Return the present memory without its log and vectors."""
        return replace(self._start, contents=self._contents.copy())

    def at(self, step: int) -> Snapshot:
        """Return the memory at the beginning of a step.

        Raises:
            ConfigError: The log begins later.
        """
        return replace(self._start, contents=replay(self._log_before(step), self._start))

    def vectors(self, entry_ids: Iterable[int] | None = None) -> TextVectors:
        """Return the vectors of all entries (or of some), and the query's."""
        entries, query = self._contents.entries, self._contents.query
        ids = list(entries if entry_ids is None else entry_ids)
        rows = self._store.rows(ids)
        digests = digests_of((entries[entry_id].text for entry_id in ids), "entry")
        if query is not None and self._query_vector is not None:
            rows = np.concatenate([rows, self._query_vector[None]])
            digests = np.concatenate([digests, digests_of([query], "query")])
        return TextVectors(self._start.embedder, digests, rows)

    async def restore(
        self,
        snapshot: Snapshot,
        operations: Sequence[Operation] = (),
        vectors: TextVectors | None = None,
        *,
        reembed: bool = False,
    ) -> Self:
        """Load a snapshot and the operations since into this new memory.

        Args:
            snapshot: The beginning of the log, with the seed.
            operations: The log since.
            vectors: From `vectors`; missing texts are embedded.
            reembed: Accept a snapshot of another embedder and embed all entries again.

        Raises:
            ConfigError: The snapshot has another embedder, and `reembed` is not set.
            TraceError: The operations do not follow from the snapshot.
            OutageError: The embedder is out of reach.
        """
        own = self._embedder.id
        if snapshot.embedder != own and not reembed:
            raise ConfigError(
                f"the memory was made with embedder={snapshot.embedder!r}, this agent has {own!r}: "
                "vectors of two embedders cannot be compared. Use the same one, or set reembed."
            )
        contents = replay(operations, snapshot)
        await self._load(contents, operations, vectors)
        self._start = replace(snapshot, embedder=own)
        return self

    def fork(self) -> Self:
        """Return an independent copy of this memory with its log."""
        twin = copy(self)
        twin._contents, twin._log = self._contents.copy(), list(self._log)
        twin._store, twin._rules = self._store.copy(), self._rules.renewed(self._log)
        return twin

    async def undo(self, step: int) -> None:
        """Return to the beginning of a step; its operations leave the log.

        Raises:
            ConfigError: The log begins later.
            OutageError: The embedder, which deleted and changed entries need, is out of reach. The
                memory is unchanged.
        """
        operations = self._log_before(step)
        await self._load(replay(operations, self._start), operations, self.vectors())

    async def _load(
        self, contents: Contents, log: Sequence[Operation], cache: TextVectors | None
    ) -> None:
        texts = [entry.text for entry in contents.entries.values()]
        queries = [] if contents.query is None else [contents.query]
        rows = await embed_texts(self._embedder, texts, "entry", cache)
        query_rows = await embed_texts(self._embedder, queries, "query", cache)
        store = VectorStore(self._embedder.dim)
        store.add(list(contents.entries), rows)
        self._contents, self._log, self._store = contents, list(log), store
        self._query_vector = query_rows[0] if queries else None
        self._rules = self._rules.renewed(log)
        self._view = contents.view(self._config.capacity)

    def _plan(self, step: int, actor: str, source: Source | None = None) -> Plan:
        capacity, seed = self._config.capacity, self._start.seed
        return Plan(self._contents.copy(), self._store, step, capacity, seed, actor, source)

    def _commit(
        self, plan: Plan, query_vector: Vectors | None, was_read: bool = False
    ) -> tuple[Operation, ...]:
        """Apply a plan: synchronise the store, and log what the next view shows."""
        self._store.update(plan.vectors)
        contents = plan.contents
        scores = contents.shown
        if contents.query is None:
            scores = ()
        elif query_vector is not None and (plan.vectors or was_read):
            scores = tuple(self._store.search(query_vector, self._config.retrieve_k))
        if contents.query is not None or contents.shown:
            plan.add("retrieve", actor=MEMORY, scores=scores)
        self._contents, self._query_vector = contents, query_vector
        self._log += plan.operations
        self._view = contents.view(self._config.capacity)
        return tuple(plan.operations)

    def _resolve(self, actions: Sequence[Action]) -> list[Write]:
        """Cut the texts of memory actions, and resolve handles by the present view."""
        config = self._config
        limits = {SCRATCHPAD: config.scratchpad_tokens, READ: config.query_tokens}
        shown = {item.handle: item.entry_id for item in self._view.retrieved}
        writes = []
        for action in actions:
            if action.kind in config.disabled_actions:
                writes.append(Write(action, action.text, disabled=True))
            elif action.kind in MEMORY_KINDS:
                text = self._cut(action.text, limits.get(action.kind, config.entry_tokens))
                entry_id = None if action.handle is None else shown.get(action.handle)
                writes.append(Write(action, text, entry_id))
        return writes

    def _cut(self, text: str, limit: int) -> str:
        return cut_to_tokens(self._tokenizer, text, limit, self._cut_marker)

    async def _embed(self, texts: Iterable[str]) -> dict[str, Text]:
        """Embed the texts of entries, each once."""
        unique = list(dict.fromkeys(texts))
        if not unique:
            return {}
        with self._activity.busy("embed"):
            rows = await self._embedder.embed(unique, "entry")
        rows = check_vectors(rows, self._embedder.dim)
        return {text: Text(text, row) for text, row in zip(unique, rows, strict=True)}

    async def _embed_query(self, query: str | None) -> Vectors | None:
        if query is None or query == self._contents.query:
            return None if query is None else self._query_vector
        with self._activity.busy("embed"):
            rows = await self._embedder.embed([query], "query")
        vector: Vectors = check_vectors(rows, self._embedder.dim)[0]
        return vector

    def _log_scores(
        self, kind: str, step: int, outcome: float, entry_ids: Iterable[int]
    ) -> Operation:
        scores = tuple((entry_id, outcome) for entry_id in entry_ids)
        operation = Operation(step, kind, scores=scores)
        self._contents.apply(operation)
        self._log.append(operation)
        return operation

    def _log_before(self, step: int) -> list[Operation]:
        first = self._start.contents.step
        if step < first:
            raise ConfigError(
                f"step={step}: the log of this memory begins at step {first}. Save memories with "
                "their log to go back further."
            )
        return [operation for operation in self._log if operation.step < step]
