"""The log of all conversations: what is committed, and what follows from it."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from atommem.errors import AtomMemError
from atommem.memory.contents import Contents, Snapshot, replay
from atommem.memory.operations import Operation, operation_from_json, to_json
from atommem.memory.vectors import TextVectors
from atommem.serve.schema import conversations, events, operations, snapshots, vectors

SNAPSHOT_EVERY = 256
"""Operations between two snapshots."""
_OF_A_CONVERSATION = (events, operations, snapshots, vectors)
_OPERATION_FIELDS = tuple(item.name for item in fields(Operation) if item.name in operations.c)
_REST = tuple(item.name for item in fields(Operation) if item.name not in operations.c)


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


@dataclass
class Loaded:
    """All that is needed to go on with a conversation.

    Attributes:
        version, seq: Of its newest event, and how many operations there are.
        turns, sampled: As of `atommem.session.SessionState`.
        checkpoint, embedder: What its newest event and operation were made with; None where there is none.
        start: The newest snapshot, None where there is none; `operations` are those since.
        unread: Items that have not been read to their end: version, and how many chunks of it have been.
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
    unread: list[tuple[int, int]]


class ConversationLog:
    """All reads and writes. Calls block; several threads may make them, and several processes use one database.

    Args:
        engine: `atommem.serve.schema.open_database`.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self._writing = engine.execution_options(writes=True)
        self._insert: Any = (sqlite if engine.dialect.name == "sqlite" else postgresql).insert
        # SQLite has one writer: threads that wait for each other here need not poll it.
        self._lock = threading.Lock() if engine.dialect.name == "sqlite" else None

    def write(self) -> _Transaction:
        """A transaction; what it wrote is there when its block has ended, and otherwise nothing of it."""
        return _Transaction(self._writing, self._lock)

    def create(self, owner: str, metadata: Mapping[str, str]) -> About:
        """A new conversation."""
        about = About(f"conv_{secrets.token_hex(16)}", owner, int(time.time()), dict(metadata))
        with self.write() as connection:
            connection.execute(conversations.insert().values(vars(about)))
        return about

    def about(self, conversation: str, owner: str) -> About:
        """What it is.

        Raises:
            NotFoundError: `owner` has none of this id.
        """
        with self.engine.begin() as connection:
            return _about(connection, conversation, owner)

    def update(self, conversation: str, owner: str, metadata: Mapping[str, str]) -> About:
        """Replace its metadata. Raises as `about`."""
        with self.write() as connection:
            _about(connection, conversation, owner)
            of_it = conversations.update().where(conversations.c.id == conversation)
            connection.execute(of_it.values(metadata=dict(metadata)))
            return _about(connection, conversation, owner)

    def erase(self, conversation: str, owner: str) -> None:
        """Everything of it, for good. Raises as `about`."""
        with self.write() as connection:
            _about(connection, conversation, owner, lock=True)  # whoever commits to it waits, and finds it gone
            for table in _OF_A_CONVERSATION:
                connection.execute(table.delete().where(table.c.conversation == conversation))
            connection.execute(conversations.delete().where(conversations.c.id == conversation))
        if self.engine.dialect.name == "sqlite":  # the deleted pages are still in the write-ahead log
            raw = self.engine.raw_connection()
            try:
                raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                raw.close()

    def commit(
        self,
        conversation: str,
        version: int,
        seq: int,
        new: Sequence[Event],
        written: Sequence[Operation] = (),
        *,
        checkpoint: str,
        embedder: str,
        cached: TextVectors | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        """Append to a conversation, all or nothing.

        Args:
            conversation: Its id.
            version, seq: Of what these events and operations follow on.
            new: At least one event.
            written: The operations that the last event brought.
            checkpoint, embedder: What made them.
            cached: Vectors of new texts.
            snapshot: Of the memory after `written`, where one is due.

        Raises:
            ConflictError: It has gone on since, or is gone.
        """
        now, last = int(time.time()), version + len(new)
        lines = [
            {
                **vars(event),
                "version": number,
                "conversation": conversation,
                "created_at": now,
                "checkpoint": checkpoint,
            }
            for number, event in enumerate(new, version + 1)
        ]
        rows = [
            _row_of(operation)
            | {"conversation": conversation, "seq": number, "version": last}
            | {"checkpoint": checkpoint, "embedder": embedder}
            for number, operation in enumerate(written, seq)
        ]
        try:
            with self.write() as connection:
                connection.execute(events.insert(), lines)
                if rows:
                    connection.execute(operations.insert(), rows)
                if cached is not None and len(cached.digests):
                    connection.execute(self._insert(vectors).on_conflict_do_nothing(), _rows_of(conversation, cached))
                if snapshot is not None:
                    values = {"conversation": conversation, "seq": seq + len(rows), "body": snapshot.to_json()}
                    connection.execute(snapshots.insert().values(values))
        except sa.exc.IntegrityError as error:
            raise ConflictError(f"conversation {conversation} has gone on after version {version}.") from error

    def load(self, conversation: str, owner: str, embedder: str, whole: bool = False) -> Loaded:
        """All that is needed to go on with it.

        Args:
            conversation, owner: As of `about`, which this raises as.
            embedder: Whose vectors.
            whole: With its whole log, from no snapshot on.
        """
        with self.engine.begin() as connection:
            about = _about(connection, conversation, owner)
            of_it = events.c.conversation == conversation
            counts = sa.select(sa.func.max(events.c.version), sa.func.max(events.c.step), sa.func.sum(events.c.tokens))
            version, step, sampled = connection.execute(counts.where(of_it)).one()
            checkpoint = connection.scalar(
                sa.select(events.c.checkpoint).where(of_it).order_by(events.c.version.desc()).limit(1)
            )
            last = connection.execute(
                sa.select(operations.c.seq, operations.c.embedder)
                .where(operations.c.conversation == conversation)
                .order_by(operations.c.seq.desc())
                .limit(1)
            ).one_or_none()
            seq = 0 if last is None else last.seq + 1
            start = None if whole else _snapshot(connection, conversation, seq)
            since = _operations(connection, conversation, 0 if start is None else start.contents.position, seq)
            found = sa.select(vectors.c.digest, vectors.c.row)
            cached = connection.execute(
                found.where(vectors.c.conversation == conversation, vectors.c.embedder == embedder)
            ).all()
            return Loaded(
                about,
                version or 0,
                seq,
                0 if step is None else step + 1,
                int(sampled or 0),
                checkpoint,
                None if last is None else last.embedder,
                start,
                since,
                _vectors(embedder, cached) if cached else None,
                _unread(connection, conversation),
            )

    def events(
        self,
        conversation: str,
        kinds: Sequence[str] = (),
        *,
        after: int = 0,
        limit: int | None = None,
        newest: bool = False,
    ) -> list[Event]:
        """Its events of these kinds (all) beyond a version, oldest first; or before it, newest first."""
        query = sa.select(events).where(events.c.conversation == conversation).limit(limit)
        if kinds:
            query = query.where(events.c.kind.in_(kinds))
        if newest:
            query = query.order_by(events.c.version.desc())
            query = query.where(events.c.version < after) if after else query
        else:
            query = query.order_by(events.c.version).where(events.c.version > after)
        with self.engine.begin() as connection:
            rows = connection.execute(query).mappings().all()
        return [_event(row) for row in rows]

    def items(self, conversation: str, kinds: Sequence[str]) -> tuple[dict[int, int], list[Event]]:
        """Events of these kinds, oldest first, without deleted items; and how far those unread have been read."""
        found = self.events(conversation, (*kinds, "deleted"))
        gone = {event.of for event in found if event.kind == "deleted"}
        with self.engine.begin() as connection:
            unread = dict(_unread(connection, conversation))
        return unread, [event for event in found if event.kind != "deleted" and event.version not in gone]

    def response(self, response: str, owner: str) -> tuple[str, Event, Event | None]:
        """The conversation, question and answer of a response; None where it was not answered.

        Raises:
            NotFoundError: `owner` has none of this id.
        """
        query = sa.select(events).join(conversations, conversations.c.id == events.c.conversation)
        query = query.where(conversations.c.owner == owner, events.c.response == response).order_by(events.c.version)
        with self.engine.begin() as connection:
            rows = connection.execute(query).mappings().all()
        if not rows:
            raise NotFoundError(f"there is no response {response!r}.")
        return rows[0]["conversation"], _event(rows[0]), _event(rows[1]) if len(rows) > 1 else None

    def operations(self, conversation: str, first: int, limit: int | None = None) -> list[Mapping[str, Any]]:
        """Its operations from number `first` on, as JSON values with their numbers, checkpoints and embedders."""
        query = sa.select(operations).where(operations.c.conversation == conversation, operations.c.seq >= first)
        with self.engine.begin() as connection:
            rows = connection.execute(query.order_by(operations.c.seq).limit(limit)).mappings().all()
        hidden = ("conversation",)
        return [
            {str(name): value for name, value in row.items() if value is not None and name not in hidden}
            for row in rows
        ]

    def length(self, conversation: str) -> int:
        """How many operations it has."""
        with self.engine.begin() as connection:
            return _length(connection, conversation)

    def memory_at(self, conversation: str, seq: int | None = None) -> Contents:
        """Its memory as `seq` operations had left it (unset: all); replayed, without an embedding."""
        with self.engine.begin() as connection:
            seq = _length(connection, conversation) if seq is None else seq
            start = _snapshot(connection, conversation, seq)
            first = 0 if start is None else start.contents.position
            return replay(_operations(connection, conversation, first, seq), start)


class _Transaction:
    """A writer's transaction, under the lock that threads of this process take turns by."""

    def __init__(self, engine: sa.Engine, lock: threading.Lock | None) -> None:
        self._begun, self._lock = engine.begin(), lock

    def __enter__(self) -> sa.Connection:
        if self._lock is not None:
            self._lock.acquire()
        try:
            return self._begun.__enter__()
        except BaseException:
            self._release()
            raise

    def __exit__(self, *exception: Any) -> None:
        try:
            self._begun.__exit__(*exception)
        finally:
            self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()


def _event(row: sa.RowMapping) -> Event:
    return Event(**{str(name): value for name, value in row.items() if name != "conversation"})


def _about(connection: sa.Connection, conversation: str, owner: str, *, lock: bool = False) -> About:
    query = sa.select(conversations).where(conversations.c.id == conversation, conversations.c.owner == owner)
    row = connection.execute(query.with_for_update() if lock else query).mappings().one_or_none()
    if row is None:
        raise NotFoundError(f"there is no conversation {conversation!r}.")
    return About(**row)


def _length(connection: sa.Connection, conversation: str) -> int:
    last = connection.scalar(sa.select(sa.func.max(operations.c.seq)).where(operations.c.conversation == conversation))
    return 0 if last is None else int(last) + 1


def _snapshot(connection: sa.Connection, conversation: str, seq: int) -> Snapshot | None:
    """The newest that is not after `seq`."""
    query = sa.select(snapshots.c.body).where(snapshots.c.conversation == conversation, snapshots.c.seq <= seq)
    body = connection.scalar(query.order_by(snapshots.c.seq.desc()).limit(1))
    return None if body is None else Snapshot.from_json(body)


def _operations(connection: sa.Connection, conversation: str, first: int, last: int) -> list[Operation]:
    columns = [operations.c[name] for name in (*_OPERATION_FIELDS, "rest")]
    query = sa.select(*columns).where(operations.c.conversation == conversation)
    query = query.where(operations.c.seq >= first, operations.c.seq < last).order_by(operations.c.seq)
    return list(_restored(connection.execute(query).mappings()))


def _row_of(operation: Operation) -> dict[str, Any]:
    values = to_json(operation)
    rest = {name: values.pop(name) for name in _REST if name in values}
    return {**dict.fromkeys(_OPERATION_FIELDS), **values, "rest": rest or None}


def _restored(rows: Iterable[sa.RowMapping]) -> Iterator[Operation]:
    for row in rows:
        values = {str(name): value for name, value in row.items() if value is not None}
        yield operation_from_json(values | values.pop("rest", {}))


def _unread(connection: sa.Connection, conversation: str) -> list[tuple[int, int]]:
    """Items with chunks that have not been read: only those at the end can have any."""
    of_it = events.c.conversation == conversation
    items = sa.select(events.c.version, events.c.chunks).where(of_it, events.c.kind == "item")
    ended = sa.select(events.c.of, events.c.kind).where(of_it, events.c.kind.in_(("step", "stopped")))
    read: dict[int, float] = {}
    for of, kind in connection.execute(ended):
        read[of] = read.get(of, 0) + (1 if kind == "step" else float("inf"))
    found = connection.execute(items.order_by(events.c.version)).all()
    return [(version, int(read.get(version, 0))) for version, chunks in found if read.get(version, 0) < chunks]


def _rows_of(conversation: str, cached: TextVectors) -> list[dict[str, Any]]:
    digests, rows = cached.digests.view(np.int64).tolist(), cached.rows.astype(np.float16)
    return [
        {"conversation": conversation, "embedder": cached.embedder, "digest": digest, "row": row.tobytes()}
        for digest, row in dict(zip(digests, rows, strict=True)).items()
    ]


def _vectors(embedder: str, rows: Sequence[Any]) -> TextVectors:
    digests = np.array([row.digest for row in rows], dtype=np.int64).view(np.uint64)
    halves = np.stack([np.frombuffer(row.row, dtype=np.float16) for row in rows])
    return TextVectors(embedder, digests, halves.astype(np.float32))
