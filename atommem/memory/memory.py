"""A memory at work: it embeds the texts of a completion, and applies the `Plan` that decides it."""

import asyncio
from collections.abc import Container, Iterable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np

from atommem.actions import CREATE, MEMORY_KINDS, READ, SCRATCHPAD, Action
from atommem.config import MemoryConfig
from atommem.embedding.embedder import Embedder, Vectors
from atommem.errors import ConfigError
from atommem.memory.log import (
    BETWEEN,
    MEMORY,
    USER,
    Contents,
    Entry,
    Found,
    MemoryView,
    Operation,
    Outcome,
    Source,
    is_part,
    replay,
)
from atommem.memory.plan import Plan, ResolvedAction
from atommem.memory.rules import RuleSet
from atommem.memory.store import TextVectors, VectorStore, best, digests_of, embed_texts
from atommem.tokens import Tokenizer, cut_to_tokens


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
        self._cut_marker, self._seed = cut_marker, seed
        self._rules = RuleSet(config.admission, config.retention)
        self._contents, self._log = Contents(), list[Operation]()
        self._store, self._past = VectorStore(embedder.dim), VectorStore(embedder.dim)
        self._query_vector: Vectors | None = None

    @property
    def log(self) -> tuple[Operation, ...]:
        return tuple(self._log)

    @property
    def contents(self) -> Contents:
        """The present contents, read-only."""
        return self._contents

    def entries(self) -> list[Entry]:
        return list(self._contents.entries.values())

    def view(self) -> MemoryView:
        return self._contents.view(self._config.capacity)

    async def apply(
        self, actions: Sequence[Action], step: int, source: Source | None = None
    ) -> tuple[Operation, ...]:
        """Apply the memory actions of one completion in order; other actions are ignored.

        Handles are those of `view()` before this call; a read takes effect in the view after it. If
        this raises (OutageError: the embedder is out of reach) or is cancelled, the memory is
        unchanged. Returns one operation for each memory action, the rules' and the retrieval.
        """
        resolved = self._resolve(actions)
        stored = [action for action in resolved if action.may_store_text]
        query = self._contents.query
        for action in resolved:
            if action.kind == READ and not action.disabled:
                query = action.text or None
        vectors, query_vector = await asyncio.gather(
            self._embed(action.text for action in stored), self._embed_query(query)
        )
        created = [action.text for action in stored if action.kind == CREATE]
        await self._rules.admission.prepare(created)
        plan = self._plan(step, source)
        plan.decide(resolved, vectors)
        return self._commit(plan, query_vector)

    async def edit(
        self, entry_id: int, text: str | None, step: int, reason: str = ""
    ) -> tuple[Operation, ...]:
        """Replace the text of an entry as the user; None deletes the entry."""
        entry, plan = self._contents.entries.get(entry_id), self._plan(step, Source(step))
        if entry is None:
            raise ConfigError(f"entry {entry_id} does not exist in this memory.")
        if text is None:
            plan.delete(entry, actor=USER, reason=reason)
        else:
            new, vectors = await self._new(text, reason)
            plan.update(entry, new.text, vectors[new.text], actor=USER, reason=new.reason)
        return self._commit(plan, self._query_vector)

    async def keep(self, text: str, step: int, piece: str) -> tuple[Operation, ...]:
        """Store a text as an entry as the user, from the source `piece`; the rules may refuse."""
        new, vectors = await self._new(text)
        await self._rules.admission.prepare([new.text])
        plan = self._plan(step, Source(step, piece))
        plan.decide([new], vectors, USER)
        return self._commit(plan, self._query_vector)

    async def _new(self, text: str, reason: str = "") -> tuple[ResolvedAction, dict[str, Vectors]]:
        """Return a text of the user, cut to the limit of an entry, and its vector."""
        (new,) = self._resolve([Action(CREATE, text)])
        reason = "; ".join(filter(None, (new.reason, reason)))
        return replace(new, reason=reason), await self._embed([new.text])

    async def forget(
        self,
        piece: str,
        step: int,
        *,
        steps_shown: Container[int] | None = None,
        entries: Iterable[int] = (),
    ) -> tuple[Operation, ...]:
        """Delete what was written while the source `piece`, or a part of it, was shown.

        An entry goes if any of its texts came from there, even if it was rewritten since, or
        deleted (then `read_past` no longer finds it); scratchpad and query are emptied if one of
        their texts since they were last empty did. `steps_shown` restricts the piece to these
        steps, for pieces that share a name; `entries` go as well.
        """
        written: set[int | str] = {*entries}  # ids of entries, and kinds
        for operation in self._log:
            target = operation.entry_id or operation.kind
            if operation.outcome is not Outcome.APPLIED:
                continue
            if operation.kind in (SCRATCHPAD, READ) and not operation.after:
                written.discard(target)
            elif _came_from(operation, piece, steps_shown):
                written.add(target)
        past = {key: old for key, old in self._contents.past.items() if old.id in written}
        if not past and not written & {SCRATCHPAD, READ, *self._contents.entries}:
            return ()
        plan = self._plan(step)
        cause: dict[str, Any] = {"actor": USER, "reason": f"forget {piece}"}
        for entry in self.entries():
            if entry.id in written:
                plan.delete(entry, **cause)
        for key in sorted(past.keys() & plan.contents.past.keys(), reverse=True):
            plan.delete(past[key], **cause, entry_id=key)
        if SCRATCHPAD in written:
            plan.add(SCRATCHPAD, before=self._contents.scratchpad, after="", **cause)
        if READ in written:
            plan.add(READ, before=self._contents.query, **cause)
        return self._commit(plan, None if READ in written else self._query_vector)

    async def search(self, query: str, k: int | None = None, source: str = "") -> list[Found]:
        """Return the entries that a read of `query` would show, best first.

        `k` replaces ``retrieve_k``; of pieces whose name begins with `source`, if given.
        """
        vector = await self._embed_query(self._cut(query, self._config.query_tokens) or None)
        if vector is None:
            return []
        hits = self._search(vector, k)
        if source:
            pieces = {entry.id: entry.source and entry.source.piece for entry in self.entries()}
            named = [key for key, piece in pieces.items() if (piece or "").startswith(source)]
            ids = np.array(named, np.int64)
            hits = best(self._store.rows(ids) @ vector, ids, k or self._config.retrieve_k)
        return [(self._contents.find(key), score) for key, score in hits]

    def append(self, operation: Operation) -> None:
        """Append an ``outcome`` or ``observe`` operation, which changes no text."""
        self._contents.apply(operation)
        self._log.append(operation)
        self._rules.observe(operation)

    def vectors(self, entry_ids: Iterable[int] | None = None) -> TextVectors:
        """Return the vectors of all entries (or of some), and the query's."""
        entries, query = self._contents.entries, self._contents.query
        ids = list(entries if entry_ids is None else entry_ids)
        rows = self._store.rows(ids)
        digests = digests_of((entries[entry_id].text for entry_id in ids), "entry")
        if query is not None and self._query_vector is not None:
            rows = np.concatenate([rows, self._query_vector[None]])
            digests = np.concatenate([digests, digests_of([query], "query")])
        return TextVectors(self._embedder.id, digests, rows)

    async def restore(self, log: Sequence[Operation], vectors: TextVectors | None = None) -> Self:
        """Load the log of another memory into this new one; texts without `vectors` are embedded.

        TraceError: the operations contradict each other.
        """
        contents = replay(log)
        queries = [] if contents.query is None else [contents.query]
        query_rows = await embed_texts(self._embedder, queries, "query", vectors)
        stores = []
        for entries in (contents.entries, contents.past if self._config.read_past else {}):
            texts = [entry.text for entry in entries.values()]
            stores.append(VectorStore(self._embedder.dim))
            rows = await embed_texts(self._embedder, texts, "entry", vectors)
            stores[-1].add(list(entries), rows)
        self._contents, self._log, (self._store, self._past) = contents, list(log), stores
        self._query_vector = query_rows[0] if queries else None
        self._rules = self._rules.renewed(log)
        return self

    def fork(self) -> Self:
        twin = copy(self)
        twin._contents, twin._log = self._contents.copy(), self._log.copy()
        twin._store, twin._rules = self._store.copy(), self._rules.renewed(self._log)
        twin._past = self._past.copy()
        return twin

    async def undo(self, step: int) -> None:
        """Return to the beginning of a step; entries deleted since are embedded again."""
        log = [operation for operation in self._log if operation.step < step]
        await self.restore(log, self.vectors())

    def _plan(self, step: int, source: Source | None = None) -> Plan:
        contents, capacity = self._contents.copy(), self._config.capacity
        return Plan(contents, self._store, self._rules, step, capacity, self._seed, source)

    def _commit(self, plan: Plan, query_vector: Vectors | None) -> tuple[Operation, ...]:
        """Apply a plan: synchronise the store, and log what the next view shows."""
        if self._config.read_past:
            self._keep_past(plan.contents)
        self._store.update(plan.vectors)
        if query_vector is not None:
            plan.add("retrieve", actor=MEMORY, scores=tuple(self._search(query_vector)))
        elif plan.contents.shown:
            plan.add("retrieve", actor=MEMORY)
        self._contents, self._query_vector = plan.contents, query_vector
        self._log += plan.operations
        return tuple(plan.operations)

    def _keep_past(self, new: Contents) -> None:
        """Keep the vectors of what a plan replaces or deletes, and drop what the user deletes.

        A text that came and went within one completion was never shown and has no vector.
        """
        old = self._contents
        changes: dict[int, Vectors | None] = dict.fromkeys(old.past.keys() - new.past.keys())
        for key, entry in new.past.items():
            before = old.entries.get(entry.id)
            if key not in old.past and before is not None and before.text == entry.text:
                changes[key] = self._store.rows([entry.id])[0]
        self._past.update(changes)

    def _search(self, vector: Vectors, k: int | None = None) -> list[tuple[int, float]]:
        """Return the best matches with their scores: entries, and with `read_past` what they were.

        Of equal scores, the present text comes first.
        """
        k = k or self._config.retrieve_k
        hits = [*self._store.search(vector, k), *self._past.search(vector, k)]
        return sorted(hits, key=lambda hit: -hit[1])[:k] if len(self._past) else hits

    def _resolve(self, actions: Sequence[Action]) -> list[ResolvedAction]:
        config, shown = self._config, self._contents.shown
        limits = {SCRATCHPAD: config.scratchpad_tokens, READ: config.query_tokens}
        entry_ids = {handle: entry_id for handle, (entry_id, _) in enumerate(shown, start=1)}
        resolved = []
        for action in actions:
            if action.kind not in MEMORY_KINDS:
                continue
            kind, handle = action.kind, action.handle
            disabled = kind in config.disabled_actions
            limit = limits.get(kind, config.entry_tokens)
            text = action.text if disabled else self._cut(action.text, limit)
            reason, entry_id = "" if text == action.text else "cut", entry_ids.get(handle or 0)
            resolved.append(ResolvedAction(kind, text, handle, entry_id, reason, disabled))
        return resolved

    def _cut(self, text: str, limit: int) -> str:
        return cut_to_tokens(self._tokenizer, text, limit, self._cut_marker)

    async def _embed(self, texts: Iterable[str]) -> dict[str, Vectors]:
        unique = list(dict.fromkeys(texts))
        rows = await embed_texts(self._embedder, unique, "entry")
        return dict(zip(unique, rows, strict=True))

    async def _embed_query(self, query: str | None) -> Vectors | None:
        if query is None:
            return None
        if query == self._contents.query:
            return self._query_vector
        (vector,) = await embed_texts(self._embedder, [query], "query")
        return vector


def _came_from(operation: Operation, piece: str, steps: Container[int] | None) -> bool:
    """Return whether a text was written while `piece` was shown, at one of `steps` if given."""
    source = operation.source
    if source is None or source.piece is None:
        return False
    if steps is not None and (operation.actor == USER or source.step not in steps):
        return False
    names = [source.piece, *source.piece.split(BETWEEN)]
    return any(is_part(name, piece) for name in names)
