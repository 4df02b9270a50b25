"""The operation log: an episode's operations, applied again, give the same memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from atommem.episode import Operation, Outcome
from atommem.errors import TraceError


@dataclass(slots=True)
class Contents:
    """What a memory holds. A fresh one is the memory at reset.

    Attributes:
        entries: Texts by id, oldest first.
        scratchpad: Its text.
        query: The current query, None before the first read.
        newest_id: The highest id that an entry has had, whether or not it is still there.
    """

    entries: dict[int, str] = field(default_factory=dict)
    scratchpad: str = ""
    query: str | None = None
    newest_id: int = 0

    def apply(self, operation: Operation) -> None:
        """Apply one operation; what was rejected, disabled or had an unknown handle changes nothing.

        Raises:
            TraceError: The operation does not fit these contents, so the log is not of one
                episode, or not in its order: its `before` differs, its entry is missing, or its
                new id has been used.
        """
        if operation.outcome is not Outcome.APPLIED:
            return
        if operation.kind == "create":
            self._create(operation)
        elif operation.kind == "update":
            entry_id = self._addressed(operation)
            self.entries[entry_id] = _written(operation)
        elif operation.kind == "delete":
            del self.entries[self._addressed(operation)]
        elif operation.kind == "scratchpad":
            _same(operation, "the scratchpad", self.scratchpad)
            self.scratchpad = _written(operation)
        elif operation.kind == "read":
            _same(operation, "the query", self.query)
            self.query = _written(operation)
        else:
            raise _misfit(operation, f"{operation.kind} is no memory action")

    def _create(self, operation: Operation) -> None:
        if operation.evicted is not None:
            del self.entries[self._present(operation, operation.evicted)]
        new = operation.entry_id
        if new is None or new <= self.newest_id:
            raise _misfit(operation, f"its new id is {new}, after {self.newest_id}")
        self.newest_id = new
        self.entries[new] = _written(operation)

    def _addressed(self, operation: Operation) -> int:
        entry_id = self._present(operation, operation.entry_id)
        _same(operation, f"entry {entry_id}", self.entries[entry_id])
        return entry_id

    def _present(self, operation: Operation, entry_id: int | None) -> int:
        if entry_id is None or entry_id not in self.entries:
            raise _misfit(operation, f"there is no entry {entry_id}")
        return entry_id


def replay(operations: Iterable[Operation]) -> Contents:
    """The memory after `operations`, from an empty one.

    Args:
        operations: Those of an episode's steps, in order, from its first step on.

    Raises:
        TraceError: The log contradicts itself (see `Contents.apply`).
    """
    contents = Contents()
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
        "Replay all operations of one episode, from its first step on, in order."
    )
