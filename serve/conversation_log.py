"""Durable log of all conversations: events, memory operations, and cached vectors."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from atommem.errors import DataError
from atommem.memory.log import Contents, Operation, operation_from_json, replay
from atommem.memory.store import TextVectors
from atommem.serve.schema import (
    ConflictError,
    ConversationInfo,
    Event,
    KeyReusedError,
    NotFoundError,
    RequestKey,
    conversations,
    events,
    requests,
    vectors,
)

_STATE = tuple(column for column in events.c if column.name not in ("conversation", "body"))
"""What `LogState` follows."""
_Write = tuple[Callable[[sa.Connection], None], "Future[None]"]
Unread = dict[int, tuple[int, int]]  # (chunks read, chunks) of an item with some left, by version


@dataclass
class LogState:
    """State of a conversation's log, with everything that its session needs to continue."""

    version: int = 0  # of the newest event
    embedder: str | None = None
    steps: int = 0  # as in `SessionState`
    sampled: int = 0
    operations: tuple[Operation, ...] = ()  # until the session has them
    vectors: TextVectors | None = None
    unread: Unread = field(default_factory=dict)

    def advance(self, event: Any) -> None:
        """Follow an event, or a row of its columns but the body."""
        self.version, self.embedder = event.version, event.embedder
        if event.kind == "step":
            self.steps = event.step + 1
            self.sampled += event.tokens
        if event.kind == "fork":
            self.unread.clear()
        elif event.kind == "item" and event.chunks:
            self.unread[event.version] = 0, event.chunks
        elif event.parent in self.unread:
            read, chunks = self.unread[event.parent]
            if event.kind == "step" and read + 1 < chunks:
                self.unread[event.parent] = read + 1, chunks
            else:  # its last step, or it was stopped or deleted
                del self.unread[event.parent]


class ConversationLog:
    """Reads and writes the database, also of several processes; calls block and are thread-safe."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self._is_sqlite = engine.dialect.name == "sqlite"
        self._write_engine = engine.execution_options(writes=True)
        # SQLite has one writer: it commits all waiting commits together, with one fsync.
        threads, self._batch = (1, 1000) if self._is_sqlite else (16, 1)
        self._waiting: SimpleQueue[_Write] = SimpleQueue()
        self._writers = ThreadPoolExecutor(threads, thread_name_prefix="atommem-commit")

    def create(
        self, owner: str, metadata: Mapping[str, str], request: RequestKey | None = None
    ) -> ConversationInfo:
        """Create a conversation, or return the one that `request` created before."""
        new = partial(_new_conversation, owner=owner, metadata=metadata)
        return self._create(owner, request, new)

    def _create(
        self,
        owner: str,
        request: RequestKey | None,
        create: Callable[[sa.Connection], ConversationInfo],
    ) -> ConversationInfo:
        try:
            with self._write_engine.begin() as connection:
                found = _find_request(connection, request)
                if found is not None:
                    return _info(connection, found.conversation, owner)
                info = create(connection)
                _record_request(connection, request, info.id)
                return info
        except sa.exc.IntegrityError:  # another gateway handled the same request
            return self._create(owner, request, create)

    def written_by(self, request: RequestKey, conversation: str, count: int) -> list[Event]:
        """Return the first `count` events that a request wrote before."""
        with self.engine.begin() as connection:
            found = _find_request(connection, request)
        after = found and found.version - 1
        return [] if after is None else self.events(conversation, after=after, limit=count)

    def info(self, conversation: str, owner: str) -> ConversationInfo:
        """Return a conversation; raise NotFoundError if `owner` has none with this id."""
        with self.engine.begin() as connection:
            return _info(connection, conversation, owner)

    def conversations(
        self, owner: str, *, after: str = "", limit: int | None = None
    ) -> list[ConversationInfo]:
        columns = conversations.c
        query = sa.select(conversations).where(columns.owner == owner).limit(limit)
        query = query.order_by(columns.created_at.desc(), columns.id.desc())
        if after:
            last = self.info(after, owner)
            place = sa.tuple_(columns.created_at, columns.id)
            query = query.where(place < sa.tuple_(last.created_at, last.id))
        return [ConversationInfo(*tuple(row)) for row in self._rows(query)]

    def update(
        self, conversation: str, owner: str, metadata: Mapping[str, str]
    ) -> ConversationInfo:
        with self._write_engine.begin() as connection:
            info = _info(connection, conversation, owner)
            row = conversations.update().where(conversations.c.id == conversation)
            connection.execute(row.values(metadata=dict(metadata)))
            return replace(info, metadata=dict(metadata))

    def erase(self, conversation: str, owner: str) -> None:
        """Delete a conversation with all its rows."""
        with self._write_engine.begin() as connection:
            _info(connection, conversation, owner, lock=True)
            for table in (events, vectors, requests):
                connection.execute(table.delete().where(table.c.conversation == conversation))
            connection.execute(conversations.delete().where(conversations.c.id == conversation))
        if self._is_sqlite:  # the write-ahead log still holds the old pages
            with self.engine.connect() as connection:
                connection.connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def commit(
        self,
        conversation: str,
        new: Sequence[Event],
        cached: TextVectors | None = None,
        request: RequestKey | None = None,
    ) -> Future[None]:
        """Append events with consecutive versions to a conversation, all or nothing.

        `cached` are vectors of new texts. The future raises ConflictError if another writer was
        first, or the conversation is gone.
        """
        rows = [{"conversation": conversation, **vars(event)} for event in new]
        vector_rows = _vector_rows(conversation, cached) if cached else []
        insert: Any = (sqlite if self._is_sqlite else postgresql).insert

        def append(connection: sa.Connection) -> None:
            try:
                connection.execute(events.insert(), rows)
                _record_request(connection, request, conversation, new[0].version)
                if vector_rows:
                    connection.execute(insert(vectors).on_conflict_do_nothing(), vector_rows)
            except sa.exc.IntegrityError as error:
                message = f"conversation {conversation} has changed or was deleted."
                raise ConflictError(message) from error

        future: Future[None] = Future()
        self._waiting.put((append, future))
        self._writers.submit(self._write_waiting)
        return future

    def _write_waiting(self) -> None:
        batch: list[_Write] = []
        with suppress(Empty):  # when another thread took them
            while len(batch) < self._batch:
                write = self._waiting.get_nowait()
                if write[1].set_running_or_notify_cancel():
                    batch.append(write)
        if batch:
            self._write(batch)

    def _write(self, batch: Sequence[_Write]) -> None:
        try:
            with self._write_engine.begin() as connection:
                for append, _ in batch:
                    append(connection)
        except Exception as error:
            if len(batch) == 1:
                batch[0][1].set_exception(error)
            else:
                for write in batch:
                    self._write([write])
        else:
            for _, future in batch:
                future.set_result(None)

    def load(self, conversation: str, owner: str, embedder: str) -> LogState:
        """Load the state of a conversation with the vectors of `embedder`."""
        self.info(conversation, owner)  # raises
        state, found = self._state(conversation)
        state.operations = tuple(
            operation_from_json(operation) for row in found for operation in row.operations
        )
        cached = sa.select(vectors.c.digest, vectors.c.row).where(
            vectors.c.conversation == conversation, vectors.c.embedder == embedder
        )
        rows = self._rows(cached)
        state.vectors = _text_vectors(embedder, rows) if rows else None
        return state

    def version(self, conversation: str, owner: str) -> int | None:
        """Return the version of the newest event; None if `owner` has no such conversation."""
        columns = conversations.c
        newest = sa.select(sa.func.max(events.c.version)).where(events.c.conversation == columns.id)
        query = sa.select(sa.func.coalesce(newest.scalar_subquery(), 0))
        rows = self._rows(query.where(columns.id == conversation, columns.owner == owner))
        return rows[0][0] if rows else None

    def events(
        self,
        conversation: str,
        kinds: Sequence[str] = (),
        *,
        after: int = 0,
        limit: int | None = None,
    ) -> list[Event]:
        """Return events after a version, oldest first."""
        query = _events_of(conversation).where(events.c.version > after).limit(limit)
        if kinds:
            query = query.where(events.c.kind.in_(kinds))
        return [_event(row) for row in self._rows(query)]

    def items(
        self, conversation: str, kinds: Sequence[str] = ("item",), name: str = ""
    ) -> list[Event]:
        """Return the events of these kinds that were not deleted, oldest first.

        With `name`, only items whose name begins with it.
        """
        query = _events_of(conversation).where(events.c.kind.in_((*kinds, "deleted")))
        if name:
            start = sa.func.substr(events.c.body["name"].as_string(), 1, len(name))
            query = query.where(sa.or_(events.c.kind == "deleted", start == name))
        found = [_event(row) for row in self._rows(query)]
        deleted = {event.parent for event in found if event.kind == "deleted"}
        return [e for e in found if e.kind != "deleted" and e.version not in deleted]

    def unread(self, conversation: str) -> Unread:
        columns = [column for column in _STATE if column.name != "operations"]
        return _advance(self._rows(_events_of(conversation, *columns))).unread

    def _state(self, conversation: str) -> tuple[LogState, Sequence[sa.Row[Any]]]:
        """Return the state without operations and vectors, and the rows that it follows."""
        rows = self._rows(_events_of(conversation, *_STATE))
        return _advance(rows), rows

    def response(self, response: str, owner: str) -> tuple[str, Event, Event | None]:
        """Return conversation, question and answer (None: unanswered) of a response."""
        query = sa.select(events).join(conversations, conversations.c.id == events.c.conversation)
        query = query.where(conversations.c.owner == owner, events.c.response == response)
        rows = self._rows(query.order_by(events.c.version))
        if not rows:
            raise NotFoundError(f"there is no response {response!r}.")
        answer = _event(rows[1]) if len(rows) > 1 else None
        return rows[0].conversation, _event(rows[0]), answer

    def fork(
        self, conversation: str, owner: str, at: int | None, request: RequestKey | None = None
    ) -> ConversationInfo:
        """Copy a conversation as it was after `at` operations (unset: all), with nothing unread."""

        def fork(connection: sa.Connection) -> ConversationInfo:
            source = _info(connection, conversation, owner)
            info = _new_conversation(connection, owner, source.metadata)
            rows, copied = [], 0
            for row in connection.execute(_events_of(conversation)).mappings():
                if at is not None and copied >= at:
                    break
                written = row["operations"][: None if at is None else at - copied]
                copied += len(written)
                # Responses stay with the conversation that gave them.
                changed = {"conversation": info.id, "response": None, "operations": written}
                rows.append({**row, **changed})
            if at is not None and copied < at:
                raise DataError(f"at={at}: this conversation has {copied} operations.")
            if not rows:
                return info
            made = {name: rows[-1][name] for name in ("checkpoint", "embedder")}
            made |= {"version": rows[-1]["version"] + 1, "created_at": info.created_at}
            event = Event("fork", {"conversation": conversation, "at": at}, **made)
            rows.append({"conversation": info.id, **vars(event)})
            connection.execute(events.insert(), rows)
            _, *columns = vectors.c
            held = sa.select(sa.literal(info.id), *columns)
            held = held.where(vectors.c.conversation == conversation)
            connection.execute(vectors.insert().from_select(vectors.c.keys(), held))
            return info

        return self._create(owner, request, fork)

    def operations(
        self, conversation: str, first: int = 0, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Return operations from number `first` as JSON values."""
        columns = events.c.version, events.c.checkpoint, events.c.operations
        found = [
            {"version": row.version, "checkpoint": row.checkpoint, **operation}
            for row in self._rows(_events_of(conversation, *columns))
            for operation in row.operations
        ]
        end = None if limit is None else first + limit
        return [{"seq": seq, **row} for seq, row in enumerate(found[first:end], first)]

    def memory_at(self, conversation: str, length: int | None = None) -> tuple[Contents, int]:
        """Replay the memory after `length` operations (unset: all); also return how many it has."""
        rows = self._rows(_events_of(conversation, events.c.operations))
        found = [operation_from_json(item) for row in rows for item in row.operations]
        if length is not None and length > len(found):
            raise DataError(f"at={length}: this conversation has {len(found)} operations.")
        return replay(found[:length]), len(found)

    def _rows(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        with self.engine.begin() as connection:
            return connection.execute(query).all()


def _advance(rows: Sequence[sa.Row[Any]]) -> LogState:
    state = LogState()
    for row in rows:
        state.advance(row)
    return state


def _events_of(conversation: str, *columns: Any) -> sa.Select[Any]:
    query = sa.select(*(columns or (events,))).order_by(events.c.version)
    return query.where(events.c.conversation == conversation)


def _new_conversation(
    connection: sa.Connection, owner: str, metadata: Mapping[str, str]
) -> ConversationInfo:
    name = f"conv_{secrets.token_hex(16)}"
    info = ConversationInfo(name, owner, int(time.time()), dict(metadata))
    connection.execute(conversations.insert().values(vars(info)))
    return info


def _info(
    connection: sa.Connection, conversation: str, owner: str, *, lock: bool = False
) -> ConversationInfo:
    query = sa.select(conversations).where(
        conversations.c.id == conversation, conversations.c.owner == owner
    )
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise NotFoundError(f"there is no conversation {conversation!r}.")
    return ConversationInfo(*tuple(row))


def _record_request(
    connection: sa.Connection,
    request: RequestKey | None,
    conversation: str,
    version: int | None = None,
) -> None:
    if request is not None:
        values = {**vars(request), "conversation": conversation, "version": version}
        connection.execute(requests.insert(), values)


def _find_request(connection: sa.Connection, request: RequestKey | None) -> sa.Row[Any] | None:
    if request is None:
        return None
    row = connection.execute(sa.select(requests).where(requests.c.key == request.key)).one_or_none()
    if row is not None and row.digest != request.digest:
        raise KeyReusedError(
            "this Idempotency-Key was used for another request. Use a new key for each request."
        )
    return row


def _event(row: sa.Row[Any]) -> Event:
    return Event(**{key: value for key, value in row._mapping.items() if key != "conversation"})


def _vector_rows(conversation: str, cached: TextVectors) -> list[dict[str, Any]]:
    digests = cached.digests.view(np.int64).tolist()
    key = {"conversation": conversation, "embedder": cached.embedder}
    return [
        {**key, "digest": digest, "row": row.tobytes()}
        for digest, row in zip(digests, cached.rows.astype(np.float32), strict=True)
    ]


def _text_vectors(embedder: str, rows: Sequence[Any]) -> TextVectors:
    digests = np.array([row.digest for row in rows], dtype=np.int64).view(np.uint64)
    found = np.stack([np.frombuffer(row.row, dtype=np.float32) for row in rows])
    return TextVectors(embedder, digests, found)
