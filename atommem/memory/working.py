"""A memory at work: scratchpad, store and current query, changed by operations and by nothing else."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Self

import numpy as np

from atommem.actions import MEMORY_KINDS, Action
from atommem.activity import ActivityClock
from atommem.config import MemoryConfig
from atommem.embedding.embedder import Embedder, Vectors
from atommem.errors import ConfigError
from atommem.memory.change import Change, Resources
from atommem.memory.contents import Contents, Snapshot, replay
from atommem.memory.entries import BETWEEN, Entry, MemoryView, Source
from atommem.memory.index import VectorIndex
from atommem.memory.keeper import Rules
from atommem.memory.operations import POLICY, USER, Operation, Outcome
from atommem.memory.shared_map import SharedMap
from atommem.memory.state import State
from atommem.memory.threads import offload
from atommem.memory.vectors import TextVectors, digests_of, embedded
from atommem.tokens import Tokenizer


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
        rules = Rules(config.admission, config.retention)
        activity = activity or ActivityClock()
        self._resources = Resources(embedder, tokenizer, config, cut_marker, activity, rules)
        self._start = Snapshot(embedder.id, Contents(), seed)
        self._state = State(Contents(), VectorIndex(embedder.dim))
        self._log: list[Operation] = []
        self._view = MemoryView(capacity=config.capacity)

    async def restore(
        self,
        snapshot: Snapshot,
        operations: Sequence[Operation] = (),
        vectors: TextVectors | None = None,
        *,
        reembed: bool = False,
    ) -> Self:
        """Take up, in a new memory, one that was put down: a snapshot, and the operations since.

        Args:
            snapshot: Where the log begins, with the seed.
            operations: The log from the snapshot on.
            vectors: As `vectors` gave them, then or at another time; what is missing is embedded.
            reembed: Take another embedder than the snapshot's; all entries are then embedded anew.

        Raises:
            ConfigError: The snapshot was made with another embedder and `reembed` is not set.
            TraceError: The operations do not follow from the snapshot.
            OutageError: The embedder is out of reach.
        """
        own = self._resources.embedder.id
        if snapshot.embedder != own and not reembed:
            raise ConfigError(
                f"the memory was searched with embedder {snapshot.embedder!r}, this one is {own!r}: their "
                "vectors do not compare. Use the same one, or set reembed to embed all entries anew."
            )
        self._start = replace(snapshot, embedder=own)
        contents = await offload(replay, operations, snapshot)
        if vectors is not None and vectors.embedder == own:
            self._state = await offload(_with_vectors, contents, vectors)
        await self._become(contents, list(operations))
        return self

    @property
    def start(self) -> Snapshot:
        """Where the log begins: an empty memory, or the snapshot that it was restored from."""
        return self._start

    @property
    def log(self) -> tuple[Operation, ...]:
        """All operations since `start`."""
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
        self,
        actions: Sequence[Action],
        step: int,
        source: Source | None = None,
        actor: str = POLICY,
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
        change = self._change(step, actor, source)
        try:
            operations = await change.run(
                [action for action in actions if action.kind in MEMORY_KINDS]
            )
        except BaseException:
            change.take_back(before)
            raise
        return self._taken(operations)

    async def edit(
        self, entry_id: int, text: str | None, step: int, actor: str = USER
    ) -> tuple[Operation, ...]:
        """Replace the text of an entry by another hand than the policy's, or delete it; what is shown follows.

        Args:
            entry_id: Which.
            text: Cut at its limit, like the policy's; None deletes the entry.
            step: The last step that was.
            actor: Who wants it.

        Raises:
            ConfigError: There is no such entry.
            OutageError: The embedder is out of reach; the memory is as it was.
        """
        if entry_id not in self._state.contents.entries:
            raise ConfigError(
                f"there is no entry {entry_id} in this memory: it was deleted, or never was."
            )
        resources = self._resources
        await self._embed_query()
        if text is None:
            operations = self._change(step, actor).forget([entry_id], (), "")
        else:
            cut = resources.cut(text, resources.config.entry_tokens)
            (vector,) = await resources.embed([cut], "entry")
            operations = self._change(step, actor, Source(step)).edit(entry_id, cut, vector)
        return self._taken(operations)

    async def forget(
        self, piece: str, step: int, actor: str = USER, *, read: Container[int] | None = None
    ) -> tuple[Operation, ...]:
        """Take out what was written while `piece` was shown: after a page turns out to be wrong, or hostile. It is
        shown among the results of a search, too.

        Entries go that had any text from there, also where it was rewritten since: what a policy rewrites, it has read.
        The scratchpad and the query are emptied if any of their texts, since they were last empty, was written then.
        What was written from other pages later stays, also by a policy that had such entries in front of it. The log
        keeps all of it; of what a memory was before its log begins, the present texts' sources are known only.

        Args:
            piece: A source's name (a URL, the name of a text); its parts (``URL, part 2/3``) are meant as well.
            step: The last step that was.
            actor: Who wants it.
            read: The steps that showed it, where other texts have its name; unset, all.

        Returns:
            The operations; none where nothing came from there.
        """

        def is_meant(source: Source | None) -> bool:
            if source is None or (read is not None and source.step not in read):
                return False
            names = [] if source.piece is None else [source.piece, *source.piece.split(BETWEEN)]
            return any(name == piece or name.startswith(f"{piece}, ") for name in names)

        contents = self._state.contents
        entry_ids: set[int] = {
            entry.id for entry in contents.entries.values() if is_meant(entry.source)
        }
        kinds: set[str] = set()
        for operation in self._log:
            if operation.outcome is not Outcome.APPLIED:
                continue
            if operation.kind in ("scratchpad", "read"):
                if not operation.after:
                    kinds.discard(operation.kind)
                elif is_meant(operation.source):
                    kinds.add(operation.kind)
            elif (entry := contents.entries.get(operation.entry_id or 0)) and is_meant(
                operation.source
            ):
                entry_ids.add(entry.id)
        if not entry_ids and not kinds:
            return ()
        await self._embed_query()
        return self._taken(
            self._change(step, actor).forget(sorted(entry_ids), kinds, f"forget {piece}")
        )

    def _change(self, step: int, actor: str, source: Source | None = None) -> Change:
        return Change(self._resources, self._state, step, source, actor, self._start.seed)

    def _taken(self, operations: list[Operation]) -> tuple[Operation, ...]:
        """Take what a change did into the log and the view."""
        self._log += operations
        self._view = self._state.contents.view(self._resources.config.capacity)
        return tuple(operations)

    async def _embed_query(self) -> None:
        """Have the query's vector, which a memory that was restored may lack: a change searches with it."""
        state = self._state
        if state.contents.query is not None and state.query_vector is None:
            (state.query_vector,) = await self._resources.embed([state.contents.query], "query")

    def record_outcome(
        self, outcome: float, step: int, entry_ids: Iterable[int] | None = None
    ) -> Operation:
        """Note how the writers of entries ended (`Entry.outcome`): by default of all whose outcome is not known."""
        if entry_ids is None:
            entry_ids = [
                entry.id for entry in self._state.contents.entries.values() if entry.outcome is None
            ]
        return self._noted("outcome", step, outcome, entry_ids)

    def observe(
        self, outcome: float, step: int, entry_ids: Iterable[int] | None = None
    ) -> Operation:
        """Note how a question or task ended that entries were shown for: by default those that are shown now."""
        if entry_ids is None:
            entry_ids = [entry_id for entry_id, _ in self._state.contents.shown]
        operation = self._noted("observe", step, outcome, entry_ids)
        self._resources.rules.tell([operation])
        return operation

    def _noted(self, kind: str, step: int, outcome: float, entry_ids: Iterable[int]) -> Operation:
        operation = Operation(
            step, kind, scores=tuple((entry_id, outcome) for entry_id in entry_ids)
        )
        self._state.apply(operation)
        self._log.append(operation)
        return operation

    def snapshot(self) -> Snapshot:
        """The memory as it is now, to be restored anywhere; see `vectors` for what it leaves out."""
        return replace(self._start, contents=self._state.contents.copy())

    def at(self, step: int) -> Snapshot:
        """The memory as it was when step `step` began: what the policy was shown then, its actions not yet applied.

        Raises:
            ConfigError: The log begins later.
        """
        return replace(self._start, contents=replay(self._before(step), self._start))

    def _before(self, step: int) -> list[Operation]:
        """The part of the log that led to step `step`."""
        first = self._start.contents.step
        if step < first:
            raise ConfigError(
                f"the log of this memory begins at step {first}, what was before step {step} is not in it: put "
                "memories down with their log."
            )
        return [operation for operation in self._log if operation.step < step]

    def vectors(self, entry_ids: Iterable[int] | None = None) -> TextVectors:
        """The vectors of all entries (or of some) in order, and the query's: they spare a restore the embedder."""
        state = self._state
        held = state.contents.entries
        ids = list(held if entry_ids is None else entry_ids)
        rows = state.index.vectors(ids)
        digests = digests_of([held[entry_id].text for entry_id in ids], "entry")
        if state.contents.query is not None and state.query_vector is not None:
            rows = np.concatenate([rows, state.query_vector[None]])
            digests = np.concatenate([digests, digests_of([state.contents.query], "query")])
        return TextVectors(self._start.embedder, digests, rows)

    def fork(self) -> Self:
        """A second memory that is this one now, log included, and goes its own way from here."""
        twin = copy(self)
        twin._resources = replace(self._resources, rules=self._resources.rules.again())
        twin._state, twin._log = self._state.fork(), list(self._log)
        twin._resources.rules.tell(twin._log)
        return twin

    async def undo(self, step: int) -> None:
        """Take back what was done at step `step` and after it, as if it had never been: `at(step)`, in place.

        The operations leave the log, and the ids of their entries are given anew.

        Raises:
            ConfigError: The log begins later.
            OutageError: The embedder, which entries deleted or changed since need, is out of reach.
        """
        operations = self._before(step)
        await self._become(await offload(replay, operations, self._start), operations)

    async def _become(self, contents: Contents, log: list[Operation]) -> None:
        """Hold other contents; the vectors of texts that stay as they are serve on."""
        gone, new = await offload(_difference, self._state.contents, contents)
        added = await embedded(self._resources.embedder, new)
        index = self._state.index
        if gone or new:
            index = await offload(_changed, index, gone, added)
        same_query = contents.query == self._state.contents.query
        self._state = State(contents, index, self._state.query_vector if same_query else None)
        self._view, self._log = contents.view(self._resources.config.capacity), log
        self._resources = replace(self._resources, rules=self._resources.rules.again())
        self._resources.rules.tell(log)


def _with_vectors(contents: Contents, vectors: TextVectors) -> State:
    """The part of `contents` whose vectors are there."""
    index = vectors.index_of(contents.entries.values())
    query_vector = None
    if contents.query is not None:
        (place,) = vectors.find([contents.query], "query")
        query_vector = vectors.rows[place] if place >= 0 else None
    held = ((entry.id, entry) for entry in contents.entries.values() if entry.id in index)
    part = Contents(SharedMap(held), query=contents.query)
    return State(part, index, query_vector)


def _difference(present: Contents, wanted: Contents) -> tuple[list[int], list[Entry]]:
    """The ids whose vectors do not serve for `wanted`, and its entries that need new ones."""
    entries = present.entries

    def serves(entry: Entry, others: Mapping[int, Entry]) -> bool:
        other = others.get(entry.id)
        return other is entry or (other is not None and other.text == entry.text)

    gone = [entry.id for entry in entries.values() if not serves(entry, wanted.entries)]
    return gone, [entry for entry in wanted.entries.values() if not serves(entry, entries)]


def _changed(
    index: VectorIndex, gone: list[int], added: list[tuple[list[int], Vectors]]
) -> VectorIndex:
    """Another index, without some ids and with new ones."""
    twin = index.fork()
    for entry_id in gone:
        twin.remove(entry_id)
    for ids, rows in added:
        twin.add(ids, rows)
    return twin
