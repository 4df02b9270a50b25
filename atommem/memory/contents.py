"""What follows from the operation log: the contents of a memory at any step, without an embedding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from atommem.errors import TraceError
from atommem.memory.entries import Entry, MemoryView, Retrieved, Source
from atommem.memory.operations import Operation, Outcome, entry_from_json, to_json
from atommem.memory.shared_map import SharedMap

SNAPSHOT_FORMAT = 1


@dataclass(slots=True)
class Contents:
    """What a memory holds. A fresh one is the memory at reset; operations change it, and nothing else does.

    Attributes:
        entries: By id, oldest first.
        scratchpad: Its text.
        query: The current query, None before the first read.
        shown: What was retrieved last, and is shown: ids with their scores, in the order of the handles.
        newest_id: The highest id that an entry has had, whether or not it is still there.
        position: How many operations led here.
        step: One more than the latest step that one of them is of; 0 before the first.
    """

    entries: SharedMap[Entry] = field(default_factory=SharedMap)
    scratchpad: str = ""
    query: str | None = None
    shown: tuple[tuple[int, float], ...] = ()
    newest_id: int = 0
    position: int = 0
    step: int = 0

    def apply(self, operation: Operation) -> None:
        """Apply one operation; what was rejected, disabled or had an unknown handle changes nothing.

        Raises:
            TraceError: The operation does not fit these contents, so the log is not of one memory, or not in its
                order: its `before` differs, its entry is missing, or its new id has been used.
        """
        if operation.outcome is Outcome.APPLIED:
            change = _CHANGES.get(operation.kind)
            if change is None:
                raise _misfit(operation, f"{operation.kind} is no memory operation")
            change(self, operation)
        self.position += 1
        self.step = max(self.step, operation.step + 1)

    def view(self, capacity: int | None = None) -> MemoryView:
        """What the policy is shown of it."""
        retrieved = tuple(
            Retrieved(handle, entry_id, self.entries[entry_id].text, score)
            for handle, (entry_id, score) in enumerate(self.shown, start=1)
        )
        return MemoryView(self.scratchpad, self.query, retrieved, len(self.entries), capacity)

    def copy(self) -> Contents:
        """The same, to be changed apart from this one."""
        return replace(self, entries=self.entries.copy())

    def _create(self, operation: Operation) -> None:
        new, step = operation.entry_id, operation.step
        if new is None or new <= self.newest_id:
            raise _misfit(operation, f"its new id is {new}, after {self.newest_id}")
        self.newest_id = new
        source = operation.source or Source(step)
        text, details = _written(operation), operation.details
        self.entries[new] = Entry(
            new, text, step, step, source=source, score=operation.score, details=details
        )

    def _update(self, operation: Operation) -> None:
        entry = self._addressed(operation)
        source = operation.source or Source(operation.step)
        self.entries[entry.id] = replace(
            entry,
            text=_written(operation),
            updated=operation.step,
            source=source,
            outcome=None,
            score=operation.score,
            details=operation.details or entry.details,
        )

    def _delete(self, operation: Operation) -> None:
        del self.entries[self._addressed(operation).id]

    def _scratchpad(self, operation: Operation) -> None:
        _same(operation, "the scratchpad", self.scratchpad)
        self.scratchpad = _written(operation)

    def _read(self, operation: Operation) -> None:
        _same(operation, "the query", self.query)
        self.query = operation.after

    def _retrieve(self, operation: Operation) -> None:
        self._scored(operation, lambda entry, score: entry.shown_again(score, operation.step + 1))
        self.shown = operation.scores

    def _outcome(self, operation: Operation) -> None:
        self._scored(operation, lambda entry, outcome: replace(entry, outcome=outcome))

    def _observe(self, operation: Operation) -> None:
        self._scored(operation, Entry.used_again)

    def _scored(self, operation: Operation, changed: Callable[[Entry, float], Entry]) -> None:
        """Change the entries that it has scores of; all of them are there, or none is changed."""
        for entry, score in [
            (self._present(operation, entry_id), score) for entry_id, score in operation.scores
        ]:
            self.entries[entry.id] = changed(entry, score)

    def _addressed(self, operation: Operation) -> Entry:
        entry = self._present(operation, operation.entry_id)
        _same(operation, f"entry {entry.id}", entry.text)
        return entry

    def _present(self, operation: Operation, entry_id: int | None) -> Entry:
        entry = None if entry_id is None else self.entries.get(entry_id)
        if entry is None:
            raise _misfit(operation, f"there is no entry {entry_id}")
        return entry


_CHANGES = {
    "create": Contents._create,
    "update": Contents._update,
    "delete": Contents._delete,
    "scratchpad": Contents._scratchpad,
    "read": Contents._read,
    "retrieve": Contents._retrieve,
    "outcome": Contents._outcome,
    "observe": Contents._observe,
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A memory put down: with the operations since, it is the memory at any later step.

    Attributes:
        embedder: The id of the embedder whose vectors the memory searches; they are not part of it.
        contents: Everything else. It is not to be changed.
        seed: Of the random numbers that rules get.
    """

    embedder: str
    contents: Contents = field(default_factory=Contents)
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        contents = self.contents
        return {
            "format": SNAPSHOT_FORMAT,
            "embedder": self.embedder,
            "seed": self.seed,
            "scratchpad": contents.scratchpad,
            "query": contents.query,
            "shown": [list(pair) for pair in contents.shown],
            "newest_id": contents.newest_id,
            "position": contents.position,
            "step": contents.step,
            "entries": [to_json(entry) for entry in contents.entries.values()],
        }

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> Snapshot:
        """The inverse of `to_json`.

        Raises:
            TraceError: It is no snapshot, or one of another format.
        """
        if not isinstance(record, Mapping) or record.get("format") != SNAPSHOT_FORMAT:
            found = record.get("format") if isinstance(record, Mapping) else type(record).__name__
            raise TraceError(
                f"this is no memory snapshot of format {SNAPSHOT_FORMAT} (its format is {found!r})."
            )
        try:
            entries = map(entry_from_json, record["entries"])
            contents = Contents(
                SharedMap((entry.id, entry) for entry in entries),
                record["scratchpad"],
                record["query"],
                tuple((int(entry_id), float(score)) for entry_id, score in record["shown"]),
                record["newest_id"],
                record["position"],
                record["step"],
            )
            return Snapshot(record["embedder"], contents, record["seed"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TraceError(
                f"a memory snapshot is broken: {type(error).__name__} {error}."
            ) from error


def replay(operations: Iterable[Operation], start: Snapshot | None = None) -> Contents:
    """The contents after `operations`: entries with their statistics, scratchpad, query and what is shown.

    Args:
        operations: Those since `start`, in order, of one memory.
        start: Where they begin; None is an empty memory.

    Raises:
        TraceError: The log contradicts itself (see `Contents.apply`).
    """
    contents = Contents() if start is None else start.contents.copy()
    for operation in operations:
        contents.apply(operation)
    return contents


def _written(operation: Operation) -> str:
    if operation.after is None:
        raise _misfit(operation, "it does not say what it wrote (after)")
    return operation.after


def _same(operation: Operation, what: str, present: str | None) -> None:
    if operation.before != present:
        raise _misfit(operation, f"{what} is {present!r}, not {operation.before!r}")


def _misfit(operation: Operation, problem: str) -> TraceError:
    return TraceError(
        f"{operation.kind} at step {operation.step} does not fit what came before it: {problem}. "
        "Replay all operations of one memory, from its start on, in order."
    )
