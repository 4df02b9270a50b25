"""A memory at work: `decide` plans the operations of a completion, `WorkingMemory.apply` does them.

Texts are embedded before anything is decided. A plan changes nothing by itself, so an error or a
cancellation in the middle of a completion leaves the memory as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

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
from atommem.memory.store import TextVectors, VectorStore, check_vectors, digests_of, embed_texts
from atommem.tokens import Tokenizer, cut_to_tokens


@dataclass(frozen=True, slots=True)
class ResolvedAction:
    """A memory action with its text cut to the limit and its handle resolved."""

    action: Action
    text: str
    entry_id: int | None = None
    disabled: bool = False

    @property
    def reason(self) -> str:
        """``cut`` if the text exceeded its limit."""
        return "" if self.text == self.action.text else "cut"

    @property
    def may_store_text(self) -> bool:
        """Whether the text may become an entry's."""
        kind = self.action.kind
        known = kind == UPDATE and self.entry_id is not None
        return not self.disabled and (kind == CREATE or known)


@dataclass(slots=True)
class Plan:
    """Operations that have been decided and not applied yet.

    `contents` (a copy) is after them, `store` before them. `vectors` has the new vector of each
    written entry by its id, None of a deleted one. `cut` limits a text that a rule wrote;
    `text_to_embed` is such a text that has no vector yet, and the plan ends before it.
    """

    contents: Contents
    store: VectorStore
    step: int
    capacity: int | None
    seed: int
    actor: str = POLICY
    source: Source | None = None
    cut: Callable[[str], str] = str
    operations: list[Operation] = field(default_factory=list)
    vectors: dict[int, Vectors | None] = field(default_factory=dict)
    text_to_embed: str | None = None

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
        values = {"actor": self.actor, **values}
        if score is not None:
            values["score"] = float(score)  # a rule's may be numpy's
        operation = Operation(self.step, kind, outcome, **values)
        self.contents.apply(operation)
        self.operations.append(operation)
        if outcome is Outcome.APPLIED and operation.entry_id is not None:
            self.vectors[operation.entry_id] = vector

    def candidate(self, text: str, vector: Vectors, replaces: int | None = None) -> Candidate:
        """Return a text as rules see it."""
        return Candidate(text, vector, self.source or Source(self.step), replaces=replaces)

    def state(self) -> StoreState:
        """Return the store after these operations, as rules see it."""
        seed = (self.seed, self.contents.position)
        entries, capacity = self.contents.entries, self.capacity
        return StoreState(entries, self.store, self.step, capacity, seed, self.vectors)


def decide(
    plan: Plan, writes: Sequence[ResolvedAction], vectors: Mapping[str, Vectors], rules: RuleSet
) -> None:
    """Add the operations that the actions of one completion lead to.

    `vectors` has every text that may be stored. If a rule writes another one, planning stops with
    `plan.text_to_embed`; begin again with its vector.
    """
    contents = plan.contents
    for write in writes:
        kind, handle = write.action.kind, write.action.handle
        origin: dict[str, Any] = {"reason": write.reason, "source": plan.source}
        if write.disabled:
            plan.add(kind, Outcome.DISABLED, handle=handle)
        elif kind == SCRATCHPAD:
            plan.add(kind, before=contents.scratchpad, after=write.text, **origin)
        elif kind == READ:
            plan.add(kind, before=contents.query, after=write.text or None, **origin)
        elif kind == CREATE:
            _create(plan, write, vectors, rules)
        elif write.entry_id not in contents.entries:  # not shown, or gone in this completion
            plan.add(kind, Outcome.UNKNOWN_HANDLE, handle=handle)
        elif kind == DELETE:
            before = contents.entries[write.entry_id].text
            plan.add(kind, entry_id=write.entry_id, handle=handle, before=before)
        elif kind == UPDATE:
            vector = vectors[write.text]
            candidate = plan.candidate(write.text, vector, write.entry_id)
            plan.add(
                kind,
                vector=vector,
                entry_id=write.entry_id,
                handle=handle,
                before=contents.entries[write.entry_id].text,
                after=write.text,
                score=rules.retention.rate(candidate, plan.state()),
                **origin,
            )
        else:
            raise AssertionError(f"the memory has no action {kind!r}")
        if plan.text_to_embed is not None:
            return
    sweep(plan, rules)


def _create(
    plan: Plan, write: ResolvedAction, vectors: Mapping[str, Vectors], rules: RuleSet
) -> None:
    text = write.text
    decision = admit(plan, rules, plan.candidate(text, vectors[text]))
    if isinstance(decision, Refused):
        plan.add(CREATE, Outcome.REJECTED, after=text, **asdict(decision))
    elif isinstance(decision, Accepted):
        plan.add(
            CREATE,
            vector=vectors[text],
            entry_id=plan.contents.newest_id + 1,
            after=text,
            reason="; ".join(filter(None, (write.reason, decision.reason))),
            score=decision.score,
            source=plan.source,
        )
    else:
        merged = text if decision.text is None else plan.cut(decision.text)
        if merged not in vectors:
            plan.text_to_embed = merged
            return
        entry, actor = plan.contents.entries[decision.entry_id], rules.admission_actor
        reason = f"{actor}: {decision.reason}"
        plan.add(CREATE, Outcome.MERGED, entry_id=entry.id, after=text, reason=reason)
        plan.add(
            UPDATE,
            vector=vectors[merged],
            entry_id=entry.id,
            before=entry.text,
            after=merged,
            actor=actor,
            reason=decision.reason,
            score=decision.score,
            source=plan.source,
        )


def admit(plan: Plan, rules: RuleSet, candidate: Candidate) -> Admission:
    """Ask the rules about a new entry, and add the evictions that make room for it.

    If `Accepted`, there is room, and the score is the entry's rating; if `Refused`, the reason
    names the rule; if `Merged`, the text still needs to be cut and embedded.
    """
    decision = rules.admission.admit(candidate, plan.state())
    if isinstance(decision, Merged):
        _find_entry(plan, rules.admission_actor, decision.entry_id)
        return decision
    if isinstance(decision, Refused):
        return replace(decision, reason=f"{rules.admission_actor}: {decision.reason}")
    rating = rules.retention.rate(candidate, plan.state())
    score = decision.score if rating is None else rating
    candidate = replace(candidate, score=score)
    while plan.capacity is not None and len(plan.contents.entries) >= plan.capacity:
        eviction = rules.retention.evict(candidate, plan.state())
        if eviction.entry_id is None:
            return Refused(f"{rules.retention_actor}: {eviction.reason}", eviction.score)
        _evict(plan, rules, eviction)
    reason = f"{rules.admission_actor}: {decision.reason}" if decision.reason else ""
    return Accepted(reason, score)


def sweep(plan: Plan, rules: RuleSet) -> None:
    """Add what the retention rule deletes at the end of a step."""
    for eviction in rules.retention.sweep(plan.state()):
        _evict(plan, rules, eviction)


def _evict(plan: Plan, rules: RuleSet, eviction: Eviction) -> None:
    actor = rules.retention_actor
    entry = _find_entry(plan, actor, eviction.entry_id)
    plan.add(DELETE, before=entry.text, actor=actor, **asdict(eviction))


def _find_entry(plan: Plan, actor: str, entry_id: int | None) -> Entry:
    entry = plan.contents.entries.get(entry_id or 0)
    if entry is None:
        raise ConfigError(f"{actor} names entry {entry_id}, which does not exist: fix the rule.")
    return entry


class WorkingMemory:
    """The memory of one episode or session: contents by the log, vectors in a store.

    A new one is empty; `restore` loads a saved one. One coroutine may use it at a time. Texts
    beyond their limit end with `cut_marker`; `seed` is of the rules' random numbers.
    """

    def __init__(
        self,
        embedder: Embedder,
        tokenizer: Tokenizer,
        config: MemoryConfig,
        cut_marker: str = "",
        seed: int = 0,
    ) -> None:
        self._embedder, self._tokenizer, self._config = embedder, tokenizer, config
        self._cut_marker = cut_marker
        self._rules = RuleSet(config.admission, config.retention)
        self._start = Snapshot(embedder.id, Contents(), seed)
        self._contents, self._log = Contents(), list[Operation]()
        self._store = VectorStore(embedder.dim)
        self._query_vector: Vectors | None = None

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
        return self._contents.view(self._config.capacity)

    async def apply(
        self, actions: Sequence[Action], step: int, source: Source | None = None
    ) -> tuple[Operation, ...]:
        """Apply the memory actions of one completion in order; other actions are ignored.

        Handles are those of `view()` before this call; a read takes effect in the view after it. If
        this raises or is cancelled, the memory is unchanged.

        Returns:
            One operation for each memory action, those of the rules, and the retrieval.

        Raises:
            OutageError: The embedder is out of reach.
            ConfigError: A rule names an entry that does not exist.
        """
        writes, query = self._resolve(actions), self._contents.query
        for write in writes:
            if write.action.kind == READ and not write.disabled:
                query = write.text or None
        stored = [write for write in writes if write.may_store_text]
        vectors, query_vector = await asyncio.gather(
            self._embed(write.text for write in stored), self._embed_query(query)
        )
        created = [write.text for write in stored if write.action.kind == CREATE]
        await self._rules.admission.prepare(created)
        while True:
            plan = self._plan(step, POLICY, source)
            decide(plan, writes, vectors, self._rules)
            if plan.text_to_embed is None:
                return self._commit(plan, query_vector)
            vectors |= await self._embed([plan.text_to_embed])

    async def edit(self, entry_id: int, text: str | None, step: int) -> tuple[Operation, ...]:
        """Replace the text of an entry as the user; None deletes the entry."""
        entry = self._contents.entries.get(entry_id)
        if entry is None:
            raise ConfigError(f"entry {entry_id} does not exist in this memory.")
        plan = self._plan(step, USER)
        if text is None:
            plan.add(DELETE, entry_id=entry_id, before=entry.text)
        else:
            text = self._cut(text, self._config.entry_tokens)
            vector = (await self._embed([text]))[text]
            values: dict[str, Any] = {"before": entry.text, "after": text, "source": Source(step)}
            plan.add(UPDATE, vector=vector, entry_id=entry_id, **values)
        return self._commit(plan, self._query_vector)

    async def forget(
        self, piece: str, step: int, *, steps_shown: Container[int] | None = None
    ) -> tuple[Operation, ...]:
        """Delete what was written while the source `piece`, or a part of it, was shown.

        An entry goes if any of its texts came from there, even if it was rewritten since. The
        scratchpad and the query are emptied if one of their texts since they were last empty came
        from there. Texts from before the beginning of the log are known by their latest source.
        `steps_shown` restricts the piece to these steps; give it if several pieces share the name.
        """

        def matches(source: Source | None) -> bool:
            if source is None or source.piece is None:
                return False
            if steps_shown is not None and source.step not in steps_shown:
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
        plan, reason = self._plan(step, USER), f"forget {piece}"
        for entry_id in sorted(found & contents.entries.keys()):
            before = contents.entries[entry_id].text
            plan.add(DELETE, entry_id=entry_id, before=before, reason=reason)
        if SCRATCHPAD in emptied:
            plan.add(SCRATCHPAD, before=contents.scratchpad, after="", reason=reason)
        if READ in emptied:
            plan.add(READ, before=contents.query, reason=reason)
        if not plan.operations:
            return ()
        return self._commit(plan, None if READ in emptied else self._query_vector)

    async def search(self, query: str) -> list[tuple[Entry, float]]:
        """Return the entries that a read of `query` would show, best first."""
        text = self._cut(query, self._config.query_tokens)
        vector = await self._embed_query(text or None)
        if vector is None:
            return []
        hits = self._store.search(vector, self._config.retrieve_k)
        return [(self._contents.entries[entry_id], score) for entry_id, score in hits]

    def append(self, operation: Operation) -> None:
        """Append an ``outcome`` or ``observe`` operation, which changes no text."""
        self._contents.apply(operation)
        self._log.append(operation)
        self._rules.observe(operation)

    def snapshot(self) -> Snapshot:
        """Return the present memory without its log and vectors."""
        return replace(self._start, contents=self._contents.copy())

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
            vectors: From `vectors`; missing texts are embedded.
            reembed: Accept a snapshot of another embedder and embed all entries again.

        Raises:
            ConfigError: The snapshot has another embedder, and `reembed` is not set.
            TraceError: The operations do not follow from the snapshot.
        """
        own = self._embedder.id
        if snapshot.embedder != own and not reembed:
            raise ConfigError(
                f"the memory was made with embedder={snapshot.embedder!r}, this agent has {own!r}: "
                "vectors of two embedders cannot be compared. Use the same one, or set reembed."
            )
        await self._load(replay(operations, snapshot), operations, vectors)
        self._start = replace(snapshot, embedder=own)
        return self

    def fork(self) -> Self:
        """Return an independent copy of this memory with its log."""
        twin = copy(self)
        twin._contents, twin._log = self._contents.copy(), self._log.copy()
        twin._store, twin._rules = self._store.copy(), self._rules.renewed(self._log)
        return twin

    async def undo(self, step: int) -> None:
        """Return to the beginning of a step; entries deleted since are embedded again."""
        first = self._start.contents.step
        if step < first:
            raise ConfigError(f"step={step}: the log of this memory begins at step {first}.")
        log = [operation for operation in self._log if operation.step < step]
        await self._load(replay(log, self._start), log, self.vectors())

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

    def _plan(self, step: int, actor: str, source: Source | None = None) -> Plan:
        return Plan(
            self._contents.copy(),
            self._store,
            step,
            self._config.capacity,
            self._start.seed,
            actor,
            source,
            cut=lambda text: self._cut(text, self._config.entry_tokens),
        )

    def _commit(self, plan: Plan, query_vector: Vectors | None) -> tuple[Operation, ...]:
        """Apply a plan: synchronise the store, and log what the next view shows."""
        self._store.update(plan.vectors)
        contents = plan.contents
        if query_vector is not None:
            hits = self._store.search(query_vector, self._config.retrieve_k)
            plan.add("retrieve", actor=MEMORY, scores=tuple(hits))
        elif contents.shown:
            plan.add("retrieve", actor=MEMORY)
        self._contents, self._query_vector = contents, query_vector
        self._log += plan.operations
        return tuple(plan.operations)

    def _resolve(self, actions: Sequence[Action]) -> list[ResolvedAction]:
        """Cut the texts of memory actions, and resolve handles by the present view."""
        config, shown = self._config, self._contents.shown
        limits = {SCRATCHPAD: config.scratchpad_tokens, READ: config.query_tokens}
        handles = {handle: entry_id for handle, (entry_id, _) in enumerate(shown, start=1)}
        writes = []
        for action in actions:
            if action.kind in config.disabled_actions:
                writes.append(ResolvedAction(action, action.text, disabled=True))
            elif action.kind in MEMORY_KINDS:
                text = self._cut(action.text, limits.get(action.kind, config.entry_tokens))
                entry_id = None if action.handle is None else handles.get(action.handle)
                writes.append(ResolvedAction(action, text, entry_id))
        return writes

    def _cut(self, text: str, limit: int) -> str:
        return cut_to_tokens(self._tokenizer, text, limit, self._cut_marker)

    async def _embed(self, texts: Iterable[str]) -> dict[str, Vectors]:
        """Embed the texts of entries, each once."""
        unique = list(dict.fromkeys(texts))
        if not unique:
            return {}
        rows = check_vectors(await self._embedder.embed(unique, "entry"), self._embedder.dim)
        return dict(zip(unique, rows, strict=True))

    async def _embed_query(self, query: str | None) -> Vectors | None:
        if query is None:
            return None
        if query == self._contents.query:
            return self._query_vector
        rows = await self._embedder.embed([query], "query")
        vector: Vectors = check_vectors(rows, self._embedder.dim)[0]
        return vector
