"""The rows of the log's tables, read and written inside of a transaction."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import sqlalchemy as sa

from atommem.errors import AtomMemError
from atommem.memory.log import Operation, Snapshot, operation_from_json, to_json
from atommem.memory.store import TextVectors
from atommem.serve.schema import conversations, events, operations, requests, snapshots

OPERATION_FIELDS = tuple(item.name for item in fields(Operation) if item.name in operations.c)
_REST = tuple(item.name for item in fields(Operation) if item.name not in operations.c)


def _of_it(value: Any, last: sa.Column[Any] | None = None) -> Any:
    """Of a conversation's rows: what they come to; or the value in the last of them."""
    table = value.table if last is not None else next(iter(value.clauses)).table
    query = sa.select(value).where(table.c.conversation == conversations.c.id)
    return (query if last is None else query.order_by(last.desc()).limit(1)).scalar_subquery()


ENDS = sa.select(
    *conversations.c,
    _of_it(sa.func.max(events.c.version)).label("version"),
    _of_it(sa.func.max(events.c.step)).label("step"),
    _of_it(sa.func.sum(events.c.tokens)).label("sampled"),
    _of_it(events.c.checkpoint, events.c.version).label("checkpoint"),
    _of_it(operations.c.seq, operations.c.seq).label("seq"),
    _of_it(operations.c.embedder, operations.c.seq).label("embedder"),
    _of_it(snapshots.c.body, snapshots.c.seq).label("snapshot"),
).where(conversations.c.id == sa.bindparam("of"), conversations.c.owner == sa.bindparam("whose"))
"""What the conversation ``of`` is, how far it has come, and what its newest event and operation were made with."""
_READ = (
    sa.select(events.c.version, events.c.kind, events.c.of, events.c.chunks)
    .where(events.c.conversation == sa.bindparam("conversation"))
    .where(events.c.kind.in_(("item", "step", "stopped", "deleted", "fork")))
    .order_by(events.c.version)
)

Unread = dict[int, tuple[int, int]]
"""By the version of an item: how many chunks of it have been read, and how many there are."""


class NotFoundError(AtomMemError):
    """There is no such thing, or it is another owner's: nobody can tell which."""


class ConflictError(AtomMemError):
    """Another writer committed this version of the conversation first. Nothing of this commit is there."""


@dataclass(frozen=True)
class Event:
    """A line of a conversation; see `atommem.serve.schema.events`. Its version is unset until it is committed."""

    kind: str
    body: Mapping[str, Any] = field(default_factory=dict)
    step: int | None = None
    of: int | None = None
    chunks: int | None = None
    tokens: int | None = None
    response: str | None = None
    version: int = 0
    created_at: int = 0
    checkpoint: str = ""


@dataclass(frozen=True)
class About:
    """What a conversation is, its log apart."""

    id: str
    owner: str
    created_at: int
    metadata: dict[str, str]


class KeyReusedError(AtomMemError):
    """A request has the ``Idempotency-Key`` of another one."""


@dataclass(frozen=True)
class RequestKey:
    """What tells a repeated request from another one.

    Attributes:
        key: SHA-256 of its owner and its ``Idempotency-Key``, hexadecimal.
        digest: SHA-256 of all that was sent.
    """

    key: str
    digest: str

    def part(self, name: str) -> RequestKey:
        """Of another write of the same request."""
        return RequestKey(hashlib.sha256(f"{self.key}/{name}".encode()).hexdigest(), self.digest)


@dataclass
class Loaded:
    """All that is needed to go on with a conversation.

    Attributes:
        version, seq: Of its newest event, and how many operations there are.
        turns, sampled: As of `atommem.session.SessionState`.
        checkpoint, embedder: What its newest event and operation were made with; None where there is none.
        start: The newest snapshot, None where there is none; `operations` are those since.
        unread: Items that have not been read to their end.
    """

    about: About
    version: int
    seq: int
    turns: int
    sampled: int
    checkpoint: str | None
    embedder: str | None
    start: Snapshot | None
    operations: list[Operation]
    vectors: TextVectors | None
    unread: Unread


def event_of(row: sa.RowMapping) -> Event:
    return Event(**{str(name): value for name, value in row.items() if name != "conversation"})


def called(item: Event) -> str:
    """What sources call an item."""
    name: str = item.body["name"] or item.body["id"]
    return name


def is_called(item: Event, name: str) -> bool:
    """Whether what came from an item came from `name`; its parts (``name, part 2/3``) are meant as well."""
    return called(item) == name or called(item).startswith(f"{name}, ")


def find_about(
    connection: sa.Connection, conversation: str, owner: str, *, lock: bool = False
) -> About:
    query = sa.select(conversations).where(
        conversations.c.id == conversation, conversations.c.owner == owner
    )
    row = connection.execute(query.with_for_update() if lock else query).mappings().one_or_none()
    if row is None:
        raise NotFoundError(f"there is no conversation {conversation!r}.")
    return About(**row)


def new_conversation(connection: sa.Connection, owner: str, metadata: Mapping[str, str]) -> About:
    about = About(f"conv_{secrets.token_hex(16)}", owner, int(time.time()), dict(metadata))
    connection.execute(conversations.insert().values(vars(about)))
    return about


def append_events(
    connection: sa.Connection, conversation: str, new: Sequence[Event], checkpoint: str
) -> None:
    now = int(time.time())
    rows = [
        {**vars(event), "conversation": conversation}
        | {"checkpoint": event.checkpoint or checkpoint, "created_at": event.created_at or now}
        for event in new
    ]
    connection.execute(events.insert(), rows)


def note_request(
    connection: sa.Connection,
    request: RequestKey | None,
    conversation: str,
    version: int | None = None,
) -> None:
    if request is not None:
        values = {**vars(request), "conversation": conversation, "version": version}
        connection.execute(requests.insert(), values)


def find_request(connection: sa.Connection, request: RequestKey | None) -> sa.Row[Any] | None:
    """What a request wrote when it came before."""
    if request is None:
        return None
    row = connection.execute(sa.select(requests).where(requests.c.key == request.key)).one_or_none()
    if row is not None and row.digest != request.digest:
        raise KeyReusedError(
            "this Idempotency-Key was sent with another request: take a new one for each."
        )
    return row


def log_length(connection: sa.Connection, conversation: str) -> int:
    last = connection.scalar(
        sa.select(sa.func.max(operations.c.seq)).where(operations.c.conversation == conversation)
    )
    return 0 if last is None else int(last) + 1


def newest_snapshot(connection: sa.Connection, conversation: str, seq: int) -> Snapshot | None:
    """The newest that is not after `seq`."""
    query = sa.select(snapshots.c.body).where(
        snapshots.c.conversation == conversation, snapshots.c.seq <= seq
    )
    body = connection.scalar(query.order_by(snapshots.c.seq.desc()).limit(1))
    return None if body is None else Snapshot.from_json(body)


def operations_between(
    connection: sa.Connection, conversation: str, first: int, last: int
) -> list[Operation]:
    columns = [operations.c[name] for name in (*OPERATION_FIELDS, "rest")]
    query = sa.select(*columns).where(operations.c.conversation == conversation)
    query = query.where(operations.c.seq >= first, operations.c.seq < last).order_by(
        operations.c.seq
    )
    found = []
    for row in connection.execute(query).mappings():
        values = {str(name): value for name, value in row.items() if value is not None}
        found.append(operation_from_json(values | values.pop("rest", {})))
    return found


def operation_rows(
    conversation: str,
    first: int,
    written: Sequence[Operation],
    made: Sequence[tuple[int, str, str]],
) -> list[dict[str, Any]]:
    """Those of operations from number `first` on; `made` has the version, checkpoint and embedder of each."""
    rows = []
    for seq, (operation, (version, checkpoint, embedder)) in enumerate(
        zip(written, made, strict=True), first
    ):
        values = to_json(operation)
        rest = {name: values.pop(name) for name in _REST if name in values}
        row = {**dict.fromkeys(OPERATION_FIELDS), **values, "rest": rest or None}
        row |= {"conversation": conversation, "seq": seq, "version": version}
        rows.append(row | {"checkpoint": checkpoint, "embedder": embedder})
    return rows


def unread_items(connection: sa.Connection, conversation: str) -> Unread:
    """What its events leave unread."""
    unread: Unread = {}
    for event in connection.execute(_READ, {"conversation": conversation}):
        take_unread(unread, *event)
    return unread


def take_unread(
    unread: Unread, version: int, kind: str, of: int | None, chunks: int | None
) -> None:
    """What an event makes of the items that have not been read to their end."""
    if kind == "fork":
        unread.clear()
    elif kind == "item" and chunks:
        unread[version] = 0, chunks
    elif of in unread:  # a step of it, or its end: stopped, deleted
        read, length = unread[of]
        if kind == "step" and read + 1 < length:
            unread[of] = (
                read + 1,
                length,
            )  # in its place: the first is read to its end before the next
        else:
            del unread[of]


def vector_rows(conversation: str, cached: TextVectors) -> list[dict[str, Any]]:
    digests, rows = cached.digests.view(np.int64).tolist(), cached.rows.astype(np.float16)
    return [
        {
            "conversation": conversation,
            "embedder": cached.embedder,
            "digest": digest,
            "row": row.tobytes(),
        }
        for digest, row in dict(zip(digests, rows, strict=True)).items()
    ]


def text_vectors(embedder: str, rows: Sequence[Any]) -> TextVectors:
    digests = np.array([row.digest for row in rows], dtype=np.int64).view(np.uint64)
    halves = np.stack([np.frombuffer(row.row, dtype=np.float16) for row in rows])
    return TextVectors(embedder, digests, halves.astype(np.float32))
