"""A memory at work: scratchpad, store and current query, changed by operations and by nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Self

import numpy as np

from atommem.actions import MEMORY_KINDS, Action
from atommem.activity import ActivityClock
from atommem.config import MemoryConfig
from atommem.embedding.embedder import Embedder, Vectors
from atommem.errors import ConfigError, TraceError
from atommem.memory.admission import make_admission
from atommem.memory.contents import Contents, Snapshot, replay
from atommem.memory.entries import Entry, MemoryView, Source
from atommem.memory.index import Ids, VectorIndex
from atommem.memory.operations import POLICY, Operation
from atommem.memory.retention import make_retention
from atommem.memory.shared_map import SharedMap
from atommem.memory.threads import offload
from atommem.memory.turn import Resources, State, Turn
from atommem.tokens import Tokenizer

_EMBEDDED_AT_ONCE = 256


class WorkingMemory:
    """Belongs to one episode or session, and starts empty; `restore` takes one up that was put down.

    Its contents are what the operation log says, and its vectors are a cache of them. One coroutine may use it at a
    time.

    Args:
        embedder: Shared by all episodes in flight; it batches across them.
        tokenizer: Measures scratchpad, query and entries.
        config: Limits, admission and retention rules, disabled actions.
        cut_marker: Ends a text that was cut at its limit.
        activity: Measures the time of ``embed`` and ``retrieve``, for all episodes that share it.
        seed: Of the random numbers that rules get.

    Raises:
        ConfigError: There is no such rule.
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
        admission, retention = make_admission(config.admission), make_retention(config.retention)
        activity = activity or ActivityClock()
        self._resources = Resources(embedder, tokenizer, config, cut_marker, activity, admission, retention)
        self._start = Snapshot(embedder.id, Contents(), seed)
        self._state = State(Contents(), VectorIndex(embedder.dim))
        self._log: list[Operation] = []
        self._view = MemoryView(capacity=config.capacity)

    @classmethod
    async def restore(
        cls,
        snapshot: Snapshot,
        embedder: Embedder,
        tokenizer: Tokenizer,
        config: MemoryConfig,
        cut_marker: str = "",
        activity: ActivityClock | None = None,
        *,
        operations: Sequence[Operation] = (),
        vectors: tuple[Sequence[int] | Ids, Vectors] | None = None,
        reembed: bool = False,
    ) -> Self:
        """Take up a memory that was put down: a snapshot, and the operations since.

        Args:
            snapshot: Where the new memory's log begins.
            embedder, tokenizer, config, cut_marker, activity: As for a new memory.
            operations: The log from the snapshot on.
            vectors: Those of the snapshot's entries, as `vectors` gave them; what is missing is embedded.
            reembed: Take another embedder than the snapshot's; all entries are then embedded anew.

        Raises:
            ConfigError: The snapshot was made with another embedder and `reembed` is not set.
            TraceError: The operations do not follow from the snapshot.
            OutageError: The embedder is out of reach.
        """
        if snapshot.embedder != embedder.id and not reembed:
            raise ConfigError(
                f"the memory was searched with embedder {snapshot.embedder!r}, this one is {embedder.id!r}: their "
                "vectors do not compare. Use the same one, or set reembed to embed all entries anew."
            )
        memory = cls(embedder, tokenizer, config, cut_marker, activity)
        memory._start = replace(snapshot, embedder=embedder.id)
        if vectors is not None and snapshot.embedder == embedder.id:
            ids, rows = vectors
            memory._state = await offload(_with_vectors, snapshot.contents, np.asarray(ids, dtype=np.int64), rows)
        await memory._become(await offload(replay, operations, snapshot), list(operations))
        return memory

    @property
    def log(self) -> tuple[Operation, ...]:
        """All operations since the memory was empty, or since the snapshot that it was restored from."""
        return tuple(self._log)

    @property
    def contents(self) -> Contents:
        """What it holds now: to be read only."""
        return self._state.contents

    def entries(self) -> list[Entry]:
        """All entries, oldest first."""
        return list(self._state.contents.entries.values())

    def view(self) -> MemoryView:
        """What the policy is shown; handles count from 1, best match first."""
        return self._view

    async def apply(
        self, actions: Sequence[Action], step: int, source: Source | None = None, actor: str = POLICY
    ) -> tuple[Operation, ...]:
        """Apply the memory actions of one completion, in the order they were written.

        Handles are those of `view()` as it was shown before this call. A read takes effect in the next view. Actions
        that are no memory actions are passed over. Whatever raises, nothing has been applied then.

        Args:
            actions: As parsed.
            step: The number of the step; it does not fall.
            source: Where the texts come from, for the entries that are written.
            actor: Who wrote them.

        Returns:
            One operation for each memory action, those of the rules, and the retrieval that the next view shows.

        Raises:
            OutageError: The embedder is out of reach.
            ConfigError: A rule names an entry that is not there.
        """
        before = self._state.contents.copy()
        turn = Turn(self._resources, self._state, step, source, actor, self._start.seed)
        try:
            operations = await turn.run([action for action in actions if action.kind in MEMORY_KINDS])
        except BaseException:
            turn.take_back(before)
            raise
        self._log += operations
        self._view = self._state.contents.view(self._resources.config.capacity)
        return tuple(operations)

    def record_outcome(self, outcome: float, step: int, entry_ids: Iterable[int] | None = None) -> Operation:
        """Note how the writers of entries ended (`Entry.outcome`): by default of all whose outcome is not known."""
        if entry_ids is None:
            entry_ids = [entry.id for entry in self._state.contents.entries.values() if entry.outcome is None]
        operation = Operation(step, "outcome", scores=tuple((entry_id, outcome) for entry_id in entry_ids))
        self._state.contents.apply(operation)
        self._log.append(operation)
        return operation

    def snapshot(self) -> Snapshot:
        """The memory as it is now, to be restored anywhere; see `vectors` for what it leaves out."""
        return replace(self._start, contents=self._state.contents.copy())

    def at(self, step: int) -> Snapshot:
        """The memory as it was when step `step` began: what the policy was shown then, its actions not yet applied."""
        contents = replay((operation for operation in self._log if operation.step < step), self._start)
        return replace(self._start, contents=contents)

    def vectors(self) -> tuple[Ids, Vectors]:
        """Ids (n,) and vectors (n, dim) of all entries, oldest first: they spare a restore the embedder."""
        ids = np.fromiter(self._state.contents.entries, dtype=np.int64, count=len(self._state.contents.entries))
        return ids, self._state.index.vectors(ids.tolist())

    def fork(self) -> Self:
        """A second memory that is this one now, log included, and goes its own way from here."""
        twin = copy(self)
        config = self._resources.config
        twin._resources = replace(
            self._resources, admission=make_admission(config.admission), retention=make_retention(config.retention)
        )
        twin._state, twin._log = self._state.fork(), list(self._log)
        return twin

    def reach_back(self, start: Snapshot, operations: Sequence[Operation]) -> None:
        """Take over the log that led here, from `start` on: `log`, `at` and `undo` then reach as far.

        For a memory that was restored from what `operations` end in, with the vectors of that.

        Raises:
            TraceError: It does not end here.
        """
        here = self._start.contents.position
        if start.contents.position + len(operations) != here:
            raise TraceError(
                f"a log of {len(operations)} operations from position {start.contents.position} on does not lead to "
                f"position {here}: give the log of this memory, and all of it."
            )
        self._start, self._log = replace(start, embedder=self._start.embedder), [*operations, *self._log]

    async def undo(self, step: int) -> None:
        """Take back what was done at step `step` and after it, as if it had never been: `at(step)`, in place.

        The operations leave the log, and the ids of their entries are given anew.

        Raises:
            OutageError: The embedder, which entries deleted or changed since need, is out of reach.
        """
        operations = [operation for operation in self._log if operation.step < step]
        await self._become(await offload(replay, operations, self._start), operations)

    async def _become(self, contents: Contents, log: list[Operation]) -> None:
        """Hold other contents; the vectors of texts that stay as they are serve on."""
        gone, new = await offload(_difference, self._state.contents, contents)
        parts = [new[first : first + _EMBEDDED_AT_ONCE] for first in range(0, len(new), _EMBEDDED_AT_ONCE)]
        embed = self._resources.embedder.embed
        rows = await asyncio.gather(*(embed([entry.text for entry in part], "entry") for part in parts))
        ids = [[entry.id for entry in part] for part in parts]
        index = self._state.index
        if gone or new:
            index = await offload(_changed, index, gone, list(zip(ids, rows, strict=True)))
        same_query = contents.query == self._state.contents.query
        self._state = State(contents, index, self._state.query_vector if same_query else None)
        self._view, self._log = contents.view(self._resources.config.capacity), log


def _with_vectors(contents: Contents, ids: Ids, rows: Vectors) -> State:
    """The entries of `contents` that have a given vector."""
    entries = SharedMap(
        (entry_id, contents.entries[entry_id]) for entry_id in ids.tolist() if entry_id in contents.entries
    )
    if len(entries) < len(ids):
        raise ConfigError(f"{len(ids)} vectors were given for {len(entries)} entries of the snapshot: one for each id.")
    index = VectorIndex(rows.shape[1])
    index.add(ids, rows)
    return State(Contents(entries), index)


def _difference(present: Contents, wanted: Contents) -> tuple[list[int], list[Entry]]:
    """The ids whose vectors do not serve for `wanted`, and its entries that need new ones."""
    entries = present.entries

    def serves(entry: Entry, others: Mapping[int, Entry]) -> bool:
        other = others.get(entry.id)
        return other is entry or (other is not None and other.text == entry.text)

    gone = [entry.id for entry in entries.values() if not serves(entry, wanted.entries)]
    return gone, [entry for entry in wanted.entries.values() if not serves(entry, entries)]


def _changed(index: VectorIndex, gone: list[int], added: list[tuple[list[int], Vectors]]) -> VectorIndex:
    """Another index, without some ids and with new ones."""
    twin = index.fork()
    for entry_id in gone:
        twin.remove(entry_id)
    for ids, rows in added:
        twin.add(ids, rows)
    return twin
