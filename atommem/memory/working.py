"""An episode's memory: scratchpad, store and current query, changed by actions and by nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from atommem.actions import MEMORY_KINDS, Action
from atommem.activity import ActivityClock
from atommem.config import MemoryConfig
from atommem.embedding.embedder import Embedder, Vectors
from atommem.episode import MemoryView, Operation, Outcome, Retrieved
from atommem.memory.retention import make_retention
from atommem.memory.store import Store
from atommem.tokens import Tokenizer, cut_to_tokens


class WorkingMemory:
    """Belongs to one episode and starts empty.

    Args:
        embedder: Shared by all episodes in flight; it batches across them.
        tokenizer: Measures the scratchpad.
        config: Limits, retention rule, disabled actions.
        cut_marker: Ends a scratchpad that was cut at its limit.
        activity: Measures the time of ``embed`` and ``retrieve``, for all episodes that share it.
    """

    def __init__(
        self,
        embedder: Embedder,
        tokenizer: Tokenizer,
        config: MemoryConfig,
        cut_marker: str = "",
        activity: ActivityClock | None = None,
    ) -> None:
        self._activity = activity or ActivityClock()
        self._embedder = embedder
        self._tokenizer = tokenizer
        self._config = config
        self._cut_marker = cut_marker
        self._disabled = set(config.disabled_actions)
        self.store = Store(embedder.dim, config.capacity, make_retention(config.retention))
        self.scratchpad = ""
        self.query: str | None = None
        self._query_vector: Vectors | None = None
        self._view = MemoryView(capacity=config.capacity)

    def view(self) -> MemoryView:
        """What the policy is shown; handles count from 1, best match first."""
        return self._view

    async def apply(self, actions: Sequence[Action], step: int, origin: str | None = None) -> tuple[Operation, ...]:
        """Apply the memory actions of one completion, in the order they were written.

        Handles are those of `view()` as it was shown before this call. A read takes effect in the
        next view. Actions that are no memory actions are passed over.

        Returns:
            One operation per memory action: the log from which the memory can be replayed.

        Raises:
            OutageError: The embedder is out of reach; nothing has been applied.
        """
        actions = [action for action in actions if action.kind in MEMORY_KINDS]
        if not actions:
            return ()
        shown = {item.handle: item.entry_id for item in self._view.retrieved}
        vectors, query_vector = await self._embed(actions, shown)
        operations = []
        for index, action in enumerate(actions):
            if str(action.kind) in self._disabled:
                operations.append(Operation(step, action.kind, Outcome.DISABLED, handle=action.handle))
            elif action.kind == "scratchpad":
                operations.append(self._write_scratchpad(action, step))
            elif action.kind == "read":
                operations.append(Operation(step, action.kind, Outcome.APPLIED, before=self.query, after=action.text))
                self.query = action.text
            elif action.kind == "create":
                operations.append(self._create(action, vectors[index], step))
            else:
                operations.append(self._change(action, vectors.get(index), shown, step))
        if query_vector is not None:
            self._query_vector = query_vector
        self._view = self._look(step + 1)
        return tuple(operations)

    async def _embed(
        self, actions: Sequence[Action], shown: dict[int, int]
    ) -> tuple[dict[int, Vectors], Vectors | None]:
        """Vectors of the texts to store (by index of their action) and of the last query."""
        enabled = [(i, action) for i, action in enumerate(actions) if str(action.kind) not in self._disabled]
        writes = [
            (i, action.text)
            for i, action in enabled
            if action.kind == "create" or (action.kind == "update" and action.handle in shown)
        ]
        queries = [action.text for _, action in enabled if action.kind == "read"][-1:]

        async def entries() -> Vectors | None:
            return await self._embedder.embed([text for _, text in writes], "entry") if writes else None

        async def query() -> Vectors | None:
            return await self._embedder.embed(queries, "query") if queries else None

        if not writes and not queries:
            return {}, None
        with self._activity.busy("embed"):
            stored, asked = await asyncio.gather(entries(), query())
        vectors = {} if stored is None else {i: stored[row] for row, (i, _) in enumerate(writes)}
        return vectors, None if asked is None else asked[0]

    def _write_scratchpad(self, action: Action, step: int) -> Operation:
        before = self.scratchpad
        self.scratchpad = cut_to_tokens(self._tokenizer, action.text, self._config.scratchpad_tokens, self._cut_marker)
        return Operation(step, action.kind, Outcome.APPLIED, before=before, after=self.scratchpad)

    def _create(self, action: Action, vector: Vectors, step: int) -> Operation:
        created = self.store.create(action.text, vector, step)
        if created.entry is None:
            return Operation(step, action.kind, Outcome.REJECTED, after=action.text)
        return Operation(
            step,
            action.kind,
            Outcome.APPLIED,
            entry_id=created.entry.id,
            after=action.text,
            evicted=None if created.evicted is None else created.evicted.id,
        )

    def _change(self, action: Action, vector: Vectors | None, shown: dict[int, int], step: int) -> Operation:
        entry_id = None if action.handle is None else shown.get(action.handle)
        # An entry that was shown may be gone already: deleted or evicted earlier in this completion.
        if entry_id is None or entry_id not in self.store:
            return Operation(step, action.kind, Outcome.UNKNOWN_HANDLE, handle=action.handle)
        if action.kind == "delete":
            before = self.store.delete(entry_id).text
            return Operation(step, action.kind, Outcome.APPLIED, entry_id, action.handle, before=before)
        assert vector is not None, "every update of a shown entry was embedded"
        before = self.store.update(entry_id, action.text, vector, step)
        return Operation(step, action.kind, Outcome.APPLIED, entry_id, action.handle, before, action.text)

    def _look(self, step: int) -> MemoryView:
        retrieved: tuple[Retrieved, ...] = ()
        if self._query_vector is not None:
            with self._activity.busy("retrieve"):
                found = self.store.search(self._query_vector, self._config.retrieve_k)
            self.store.mark_used([entry.id for entry, _ in found], step)
            retrieved = tuple(
                Retrieved(handle, entry.id, entry.text, score) for handle, (entry, score) in enumerate(found, start=1)
            )
        return MemoryView(self.scratchpad, self.query, retrieved, len(self.store), self._config.capacity)
