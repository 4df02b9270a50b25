"""Events of a conversation, and the state that follows from them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from atommem.errors import AtomMemError
from atommem.memory.log import Operation, Snapshot
from atommem.memory.store import TextVectors

Unread = dict[int, tuple[int, int]]
"""Items with chunks left to read: (chunks read, chunks) by the item's version."""


class NotFoundError(AtomMemError):
    """The object does not exist, or belongs to another owner."""


class BusyError(AtomMemError):
    """Too many requests are waiting, or writing to one conversation."""


class ConflictError(AtomMemError):
    """Another gateway committed this version first; nothing of this commit was written."""


class KeyReusedError(AtomMemError):
    """An ``Idempotency-Key`` came with a different request."""


@dataclass(frozen=True)
class ConversationInfo:
    """A row of the table ``conversations``."""

    id: str
    owner: str
    created_at: int
    metadata: dict[str, str]


@dataclass(frozen=True)
class Event:
    """A row of the table ``events``; the version is 0 until it is committed."""

    kind: str
    body: Mapping[str, Any] = field(default_factory=dict)
    step: int | None = None
    parent: int | None = None
    chunks: int | None = None
    tokens: int | None = None
    response: str | None = None
    version: int = 0
    created_at: int = 0
    checkpoint: str = ""
    embedder: str = ""


@dataclass(frozen=True)
class RequestKey:
    """Identity of a request with an ``Idempotency-Key``.

    Attributes:
        key: SHA-256 of owner and key, hexadecimal.
        digest: SHA-256 of the request.
    """

    key: str
    digest: str

    def derive(self, name: str) -> RequestKey:
        """Return the key of another write of the same request."""
        return RequestKey(hashlib.sha256(f"{self.key}/{name}".encode()).hexdigest(), self.digest)


@dataclass
class LogState:
    """Where the log of a conversation stands, and what its session needs to continue.

    Attributes:
        version, seq: Of the newest event; number of operations.
        turns, sampled: As in `atommem.session_state.SessionState`.
        checkpoint, embedder: Of the newest event; None without events.
        snapshot: The newest one; `operations` are those since.
        unread: Items with chunks left to read, in order.
    """

    info: ConversationInfo
    version: int = 0
    seq: int = 0
    turns: int = 0
    sampled: int = 0
    checkpoint: str | None = None
    embedder: str | None = None
    snapshot: Snapshot | None = None
    operations: list[Operation] = field(default_factory=list)
    vectors: TextVectors | None = None
    unread: Unread = field(default_factory=dict)


def update_unread(
    unread: Unread, version: int, kind: str, parent: int | None, chunks: int | None
) -> None:
    """Apply an event to `unread`."""
    if kind == "fork":
        unread.clear()
    elif kind == "item" and chunks:
        unread[version] = 0, chunks
    elif parent in unread:
        read, total = unread[parent]
        if kind == "step" and read + 1 < total:
            unread[parent] = read + 1, total
        else:  # its last step, or it was stopped or deleted
            del unread[parent]


def source_name(item: Event) -> str:
    """Return the name that entries have as the source of text from `item`."""
    name: str = item.body["name"] or item.body["id"]
    return name


def has_source(item: Event, name: str) -> bool:
    """Whether `name` is the source name of `item`, or of the whole whose part it is."""
    return source_name(item) == name or source_name(item).startswith(f"{name}, ")
