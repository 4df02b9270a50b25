"""The operation log of a memory, and the contents that follow from it.

Nothing else changes a memory: `Contents.apply` applies one operation, `replay` a whole log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

import msgspec

from atommem.errors import TraceError

POLICY, MEMORY, USER = "policy", "memory", "user"
"""Actors. A rule acts as ``retention:NAME`` or ``admission:NAME``."""
BETWEEN = " | "  # separates the names in `Source.piece`; no address contains it
_PARTS = re.compile(r"(?:, (?:(?:chunk|part) \d+/\d+|as given|document .+))*")


class Outcome(StrEnum):
    """The result of a memory action."""

    APPLIED = "applied"
    REJECTED = "rejected"  # a rule refused the new entry; the reason names the rule
    MERGED = "merged"
    """An admission rule merged the new entry into another one (the update that follows)."""
    UNKNOWN_HANDLE = "unknown_handle"  # the handle was not shown, or its entry no longer exists
    DISABLED = "disabled"  # the settings switch this action off


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a text.

    `piece` names the chunk or page that was shown then. For a search: the call and the addresses
    that it found, joined by `BETWEEN`.
    """

    step: int  # whose completion wrote it
    piece: str | None = None
    start: int | None = None  # the chunk's span of characters in the whole text
    end: int | None = None


def is_part(piece: str, name: str) -> bool:
    """Return whether a piece is the text or page `name`, or a part of it."""
    return piece.startswith(name) and _PARTS.fullmatch(piece, len(name)) is not None


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of the store with the statistics that rules use; replaced, never changed."""

    id: int  # unique in its memory; never reused
    text: str
    created: int  # the step
    updated: int  # the step at which it was last written
    shown: int = 0  # the number of steps at which the policy saw it
    last_shown: int | None = None  # the last of these
    last_similarity: float | None = None  # cosine to the query at its last retrieval
    best_similarity: float | None = None  # over its retrievals
    source: Source | None = None
    outcome: float | None = None  # of the present text: the reward of its episode
    mean_similarity: float | None = None  # over its retrievals
    score: float | None = None  # of the present text: a rule's rating
    uses: int = 0  # observed tasks that it was shown for
    mean_outcome: float | None = None  # over these tasks
    details: Mapping[str, Any] | None = None  # further JSON values (records of an experience bank)


Found = tuple[Entry, float]  # with its similarity


@dataclass(frozen=True, slots=True)
class Retrieved:
    """A retrieved entry under its handle: 1 is the best match.

    The id of one that was replaced or deleted since is negative (`Contents.past`).
    """

    handle: int
    entry_id: int
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class MemoryView:
    """The memory as the policy sees it at one step; without a query it is None."""

    scratchpad: str = ""
    query: str | None = None
    retrieved: tuple[Retrieved, ...] = ()
    size: int = 0
    capacity: int | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One line of the log: a change, an action without effect, or a retrieval.

    Every memory action of a completion has exactly one operation by the actor ``policy``. Rules
    have their own: an eviction is a delete before its create, a merge an update after it. Kinds
    are ``create``, ``read``, ``update``, ``delete``, ``scratchpad``; ``retrieve`` (the results that
    the next step shows); ``outcome`` (the reward of the writers of entries); ``observe`` (the
    outcome of a task that entries were shown for). `scores` are pairs of entry id and number:
    cosines in the order of the handles (retrieve), or rewards (outcome, observe).
    """

    step: int
    kind: str
    outcome: Outcome = Outcome.APPLIED  # only these change the contents
    entry_id: int | None = None
    handle: int | None = None  # by which the policy addressed the entry
    before: str | None = None  # the old text of the entry, the scratchpad or (read) the query
    after: str | None = None  # the new one
    actor: str = POLICY  # or "user", "memory" (retrievals), a rule ("retention:NAME")
    reason: str = ""  # a rule's, or "cut" if the text exceeded its limit
    score: float | None = None  # on which a rule decided; of a create or update, its rating
    scores: tuple[tuple[int, float], ...] = ()
    source: Source | None = None  # of the text, if more than the step is known
    details: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Contents:
    """The contents of a memory; only operations change them.

    `past` are entries as they were before they were replaced or deleted, unless by the user. The
    key is the negative number of that operation.
    """

    entries: dict[int, Entry] = field(default_factory=dict)  # by id, oldest first
    scratchpad: str = ""
    query: str | None = None
    shown: tuple[tuple[int, float], ...] = ()  # entry ids and scores, in the order of handles
    newest_id: int = 0  # the highest id given so far
    position: int = 0  # the number of operations that led here
    past: dict[int, Entry] = field(default_factory=dict)

    def apply(self, operation: Operation) -> None:
        """Apply one operation, or raise TraceError if it contradicts the contents."""
        if operation.outcome is Outcome.APPLIED:
            self._change(operation)
        self.position += 1

    def view(self, capacity: int | None = None) -> MemoryView:
        retrieved = tuple(
            Retrieved(handle, entry_id, self.find(entry_id).text, score)
            for handle, (entry_id, score) in enumerate(self.shown, start=1)
        )
        return MemoryView(self.scratchpad, self.query, retrieved, len(self.entries), capacity)

    def find(self, entry_id: int) -> Entry:
        """Return an entry, or with the key of `past` how one was."""
        return self.past[entry_id] if entry_id < 0 else self.entries[entry_id]

    def copy(self) -> Contents:
        return replace(self, entries=self.entries.copy(), past=self.past.copy())

    def _change(self, operation: Operation) -> None:
        match operation.kind:
            case "create":
                new = operation.entry_id
                if new is None or new <= self.newest_id:
                    raise _misfit(operation, f"its new id is {new}, after {self.newest_id}")
                blank = Entry(new, "", created=operation.step, updated=operation.step)
                self.entries[new] = _rewritten(blank, operation)
                self.newest_id = new
            case "update":
                entry = self._addressed(operation)
                self._keep(operation, entry)
                self.entries[entry.id] = _rewritten(entry, operation)
            case "delete":
                entry = self._addressed(operation)
                if (key := operation.entry_id or 0) < 0:
                    del self.past[key]
                else:
                    self._keep(operation, entry)
                    del self.entries[key]
            case "scratchpad":
                _check_before(operation, "the scratchpad", self.scratchpad)
                self.scratchpad = _written(operation)
            case "read":
                _check_before(operation, "the query", self.query)
                self.query = operation.after
            case "retrieve" | "outcome" | "observe":
                self._note_scores(operation)
            case _:
                raise _misfit(operation, f"{operation.kind!r} is not a memory operation")

    def _keep(self, operation: Operation, entry: Entry) -> None:
        """Keep an entry in `past`; what the user corrects or deletes does not come back."""
        if operation.actor == USER:
            self.past = {key: old for key, old in self.past.items() if old.id != entry.id}
        elif operation.after != entry.text:
            self.past[-self.position - 1] = entry

    def _note_scores(self, operation: Operation) -> None:
        changed: dict[int, Entry] = {}
        for entry_id, score in operation.scores:
            entry = self._present(operation, entry_id)
            if entry_id < 0:
                continue
            if operation.kind == "retrieve":
                count, best = entry.shown + 1, entry.best_similarity
                entry = replace(
                    entry,
                    shown=count,
                    last_shown=operation.step + 1,
                    last_similarity=score,
                    best_similarity=score if best is None else max(score, best),
                    mean_similarity=_running_mean(entry.mean_similarity, score, count),
                )
            elif operation.kind == "outcome":
                entry = replace(entry, outcome=score)
            else:
                count = entry.uses + 1
                mean = _running_mean(entry.mean_outcome, score, count)
                entry = replace(entry, uses=count, mean_outcome=mean)
            changed[entry_id] = entry
        self.entries |= changed
        if operation.kind == "retrieve":
            self.shown = operation.scores

    def _addressed(self, operation: Operation) -> Entry:
        entry = self._present(operation, operation.entry_id)
        _check_before(operation, f"entry {entry.id}", entry.text)
        return entry

    def _present(self, operation: Operation, entry_id: int | None) -> Entry:
        key = entry_id or 0
        entry = (self.past if key < 0 else self.entries).get(key)
        if entry is None:
            raise _misfit(operation, f"entry {entry_id} does not exist")
        return entry


def _rewritten(entry: Entry, operation: Operation) -> Entry:
    return replace(
        entry,
        text=_written(operation),
        updated=operation.step,
        source=operation.source or Source(operation.step),
        outcome=None,
        score=operation.score,
        details=operation.details or entry.details,
    )


def _running_mean(mean: float | None, value: float, count: int) -> float:
    mean = mean or 0.0
    return mean + (value - mean) / count


def _written(operation: Operation) -> str:
    if operation.after is None:
        raise _misfit(operation, "its new text (after) is missing")
    return operation.after


def _check_before(operation: Operation, name: str, present: str | None) -> None:
    if operation.before != present:
        raise _misfit(operation, f"{name} is {present!r}, not {operation.before!r}")


def _misfit(operation: Operation, problem: str) -> TraceError:
    return TraceError(
        f"{operation.kind} at step {operation.step} contradicts the log before it: {problem}. "
        "Replay all operations of one memory in order."
    )


def replay(operations: Iterable[Operation]) -> Contents:
    contents = Contents()
    for operation in operations:
        contents.apply(operation)
    return contents


def to_json(record: Operation | Source) -> dict[str, Any]:
    """Return the fields that differ from their defaults, as JSON values."""
    found: dict[str, Any] = {}
    for item in fields(record):
        value = getattr(record, item.name)
        if value != item.default:
            found[item.name] = to_json(value) if isinstance(value, Source) else value
    return found


def operation_from_json(record: Mapping[str, Any]) -> Operation:
    """Return the operation that `to_json` wrote. Raises ValueError if `record` is damaged."""
    return msgspec.convert(record, Operation)


# msgspec keeps what it knows of a class on it, and crashes where two threads build that at once.
msgspec.json.Decoder(Operation)
