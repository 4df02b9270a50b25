"""One completion's memory actions becoming operations: limits, handles, admission, retention, retrieval."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from atommem.actions import Action
from atommem.activity import ActivityClock
from atommem.config import MemoryConfig
from atommem.embedding.embedder import Embedder, TextKind, Vectors
from atommem.errors import ConfigError
from atommem.memory.admission import Accepted, Merged
from atommem.memory.contents import Contents
from atommem.memory.entries import Source
from atommem.memory.keeper import Keeper, Rules
from atommem.memory.operations import MEMORY, Operation, Outcome
from atommem.memory.rules import Candidate
from atommem.memory.state import State
from atommem.memory.threads import offload
from atommem.tokens import Tokenizer, cut_to_tokens

CUT = "cut"


@dataclass(frozen=True, slots=True)
class Resources:
    """What a memory works with: see `WorkingMemory`."""

    embedder: Embedder
    tokenizer: Tokenizer
    config: MemoryConfig
    cut_marker: str
    activity: ActivityClock
    rules: Rules

    def cut(self, text: str, limit: int) -> str:
        """`text` of at most `limit` tokens."""
        return cut_to_tokens(self.tokenizer, text, limit, self.cut_marker)

    async def embed(self, texts: Sequence[str], kind: TextKind) -> list[Vectors]:
        """One vector for each text."""
        return list(await self.embedder.embed(texts, kind)) if texts else []


@dataclass(slots=True)
class _Write:
    """An action with its text cut at its limit, the entry that its handle stood for, and its text's vector."""

    action: Action
    text: str
    entry_id: int | None
    disabled: bool
    vector: Vectors | None = None

    @property
    def reason(self) -> str:
        return "" if self.text == self.action.text else CUT


class Change:
    """The actions of one completion being applied to a memory: what `WorkingMemory.apply` does. Used once."""

    def __init__(
        self,
        resources: Resources,
        state: State,
        step: int,
        source: Source | None,
        actor: str,
        seed: int,
    ) -> None:
        self._resources = resources
        self._state = state
        self._step = step
        self._source = source
        self._actor = actor
        self._keeper = Keeper(
            resources.rules, state, resources.config.capacity, step, seed, self._apply
        )
        self._operations: list[Operation] = []
        self._query_vector = self._vector_before = state.query_vector
        self._changed = False
        # The vectors of entries before this turn, should it have to be taken back; None of new ones.
        self._before: dict[int, Vectors | None] = {}

    async def run(self, actions: Sequence[Action]) -> list[Operation]:
        """Apply `actions` and retrieve; the operations."""
        shown = {
            handle: entry_id
            for handle, (entry_id, _) in enumerate(self._state.contents.shown, start=1)
        }
        writes = [self._prepare(action, shown) for action in actions]
        await self._embed(writes)
        creates = [
            write.text for write in writes if write.action.kind == "create" and not write.disabled
        ]
        await self._resources.rules.prepare(creates)
        work = self._work(writes)
        text = await self._advance(work, None, writes)
        while text is not None:
            with self._resources.activity.busy("embed"):
                (vector,) = await self._resources.embed([text], "entry")
            text = await self._advance(work, vector, writes)
        return self._operations

    def forget(
        self, entry_ids: Iterable[int], kinds: Container[str], reason: str
    ) -> list[Operation]:
        """Delete entries, and empty the scratchpad and the query as `kinds` say; the operations."""
        contents = self._state.contents
        cause: dict[str, Any] = {"actor": self._actor, "reason": reason}
        for entry_id in entry_ids:
            before = contents.entries[entry_id].text
            self._apply(Operation(self._step, "delete", entry_id=entry_id, before=before, **cause))
        if "scratchpad" in kinds:
            self._apply(
                Operation(self._step, "scratchpad", before=contents.scratchpad, after="", **cause)
            )
        if "read" in kinds:
            self._apply(Operation(self._step, "read", before=contents.query, **cause))
            self._query_vector = None
        self._changed = True
        self._retrieve()
        return self._operations

    def edit(self, entry_id: int, text: str, vector: Vectors) -> list[Operation]:
        """Replace the text of an entry that is there, whether or not it is shown; the operations."""
        before = self._state.contents.entries[entry_id].text
        fields: dict[str, Any] = {
            "before": before,
            "after": text,
            "actor": self._actor,
            "source": self._source,
        }
        self._apply(Operation(self._step, "update", entry_id=entry_id, **fields), vector)
        self._retrieve()
        return self._operations

    async def _advance(
        self, work: Generator[str, Vectors, None], vector: Vectors | None, writes: Sequence[_Write]
    ) -> str | None:
        """Go on with the work, in a thread where the store is large, until it ends or needs the vector of a text."""

        def go_on() -> str | None:
            try:
                return next(work) if vector is None else work.send(vector)
            except StopIteration:
                return None

        with self._resources.activity.busy("retrieve"):
            if writes and self._state.index.is_large:
                return await offload(go_on)
            return go_on()

    def _work(self, writes: Sequence[_Write]) -> Generator[str, Vectors, None]:
        """Apply the actions one after the other, and retrieve; yields texts of merged entries, to be sent vectors."""
        for write in writes:
            kind = write.action.kind
            if write.disabled:
                self._note(write, Outcome.DISABLED, handle=write.action.handle)
            elif kind == "create":
                yield from self._create(write)
            elif kind == "scratchpad":
                before = self._state.contents.scratchpad
                self._note(
                    write, before=before, after=write.text, reason=write.reason, source=self._source
                )
            elif kind == "read":
                query = self._state.contents.query
                self._note(
                    write,
                    before=query,
                    after=write.text or None,
                    reason=write.reason,
                    source=self._source,
                )
                self._changed = True
            else:
                self._change(write)
        self._keeper.sweep()
        self._retrieve()

    def take_back(self, contents: Contents) -> None:
        """Leave the memory with `contents`, as it was before this turn."""
        self._state.contents, self._state.query_vector = contents, self._vector_before
        self._state.columns = None
        index = self._state.index
        for entry_id, vector in self._before.items():
            if vector is not None:
                index.put(entry_id, vector)
            elif entry_id in index:
                index.remove(entry_id)

    def _prepare(self, action: Action, shown: dict[int, int]) -> _Write:
        config = self._resources.config
        entry_id = None if action.handle is None else shown.get(action.handle)
        if str(action.kind) in config.disabled_actions:
            return _Write(action, action.text, entry_id, disabled=True)
        limits = {"scratchpad": config.scratchpad_tokens, "read": config.query_tokens}
        limit = limits.get(action.kind, config.entry_tokens)
        return _Write(action, self._resources.cut(action.text, limit), entry_id, disabled=False)

    async def _embed(self, writes: Sequence[_Write]) -> None:
        """Embed the texts to store, and the query of the next view where it is new."""
        resources = self._resources
        enabled = [write for write in writes if not write.disabled]
        stored = [
            write
            for write in enabled
            if write.action.kind == "create"
            or (write.action.kind == "update" and write.entry_id is not None)
        ]
        query = self._state.contents.query
        reads = [write.text for write in enabled if write.action.kind == "read"]
        if reads:
            query, self._query_vector = (reads[-1] or None), None
        # After a restore the query has no vector yet: it needs one as soon as something may change what it finds.
        searched = (
            any(write.action.kind != "scratchpad" for write in enabled) or resources.rules.sweeps
        )
        asked = [query] if query is not None and self._query_vector is None and searched else []
        if not stored and not asked:
            return
        texts = [write.text for write in stored]
        with resources.activity.busy("embed"):
            vectors, asked_vectors = await asyncio.gather(
                resources.embed(texts, "entry"), resources.embed(asked, "query")
            )
        for write, vector in zip(stored, vectors, strict=True):
            write.vector = vector
        if asked:
            self._query_vector = asked_vectors[0]

    def _create(self, write: _Write) -> Generator[str, Vectors, None]:
        assert write.vector is not None, "every create was embedded"
        candidate = Candidate(write.text, write.vector, self._source or Source(self._step))
        decision = self._keeper.decide(candidate)
        if isinstance(decision, Merged):
            yield from self._merge(write, decision)
            return
        room = isinstance(decision, Accepted)
        self._note(
            write,
            Outcome.APPLIED if room else Outcome.REJECTED,
            vector=write.vector,
            entry_id=self._state.contents.newest_id + 1 if room else None,
            after=write.text,
            reason="; ".join(filter(None, (write.reason if room else "", decision.reason))),
            score=decision.score,
            source=self._source if room else None,
        )

    def _merge(self, write: _Write, merged: Merged) -> Generator[str, Vectors, None]:
        resources, actor = self._resources, self._resources.rules.admits
        entry = self._state.contents.entries.get(merged.entry_id)
        if entry is None:
            raise ConfigError(
                f"{actor} merges into entry {merged.entry_id}, which is not there: mend the rule."
            )
        text, vector = write.text, write.vector
        if merged.text is not None and merged.text != text:
            text = resources.cut(merged.text, resources.config.entry_tokens)
            vector = yield text
        self._note(
            write,
            Outcome.MERGED,
            entry_id=entry.id,
            after=write.text,
            reason=f"{actor}: {merged.reason}",
        )
        self._apply(
            Operation(
                self._step,
                "update",
                entry_id=entry.id,
                before=entry.text,
                after=text,
                actor=actor,
                reason=merged.reason,
                score=merged.score,
                source=self._source,
            ),
            vector,
        )

    def _change(self, write: _Write) -> None:
        kind, handle = write.action.kind, write.action.handle
        # An entry that was shown may be gone already: deleted or evicted earlier in this completion.
        entry = None if write.entry_id is None else self._state.contents.entries.get(write.entry_id)
        if entry is None:
            self._note(write, Outcome.UNKNOWN_HANDLE, handle=handle)
        elif kind == "delete":
            self._note(write, entry_id=entry.id, handle=handle, before=entry.text)
        else:
            assert write.vector is not None, "every update was embedded"
            source = self._source or Source(self._step)
            self._note(
                write,
                vector=write.vector,
                entry_id=entry.id,
                handle=handle,
                before=entry.text,
                after=write.text,
                reason=write.reason,
                score=self._keeper.rated(
                    Candidate(write.text, write.vector, source, replaces=entry.id)
                ),
                source=self._source,
            )

    def _retrieve(self) -> None:
        """Log what the next view shows: searched for when query or entries changed, and the same otherwise."""
        state = self._state
        scores = state.contents.shown
        if state.contents.query is None:
            scores = ()
        elif self._changed:
            assert self._query_vector is not None, "a query was embedded when it was read"
            scores = tuple(
                state.index.search(self._query_vector, self._resources.config.retrieve_k)
            )
        if state.contents.query is not None or state.contents.shown:
            self._apply(Operation(self._step, "retrieve", actor=MEMORY, scores=scores))
        state.query_vector = self._query_vector

    def _note(
        self,
        write: _Write,
        outcome: Outcome = Outcome.APPLIED,
        *,
        vector: Vectors | None = None,
        **fields: Any,
    ) -> None:
        """The line of the log that an action has."""
        self._apply(
            Operation(self._step, str(write.action.kind), outcome, actor=self._actor, **fields),
            vector,
        )

    def _apply(self, operation: Operation, vector: Vectors | None = None) -> None:
        """Apply an operation to the contents and to the vectors that cache them."""
        index, entry_id = self._state.index, operation.entry_id
        if operation.outcome is Outcome.APPLIED and entry_id is not None:
            if entry_id not in self._before:
                self._before[entry_id] = index.vector(entry_id) if entry_id in index else None
            self._changed = True
        self._state.apply(operation, vector)
        self._operations.append(operation)
