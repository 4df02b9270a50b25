"""Durable log of all conversations: events, operations, and caches of vectors and snapshots."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import numpy as np
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from atommem.memory.log import Contents, Operation, Snapshot, operation_from_json, replay, to_json
from atommem.memory.store import TextVectors
from atommem.serve.events import (
    ConflictError,
    ConversationInfo,
    Event,
    KeyReusedError,
    LogState,
    NotFoundError,
    RequestKey,
    Unread,
    has_source,
    update_unread,
)
from atommem.serve.schema import conversations, events, operations, requests, snapshots, vectors

SNAPSHOT_INTERVAL = 256
"""Operations between two snapshots."""
_WRITERS = 16
_Result = TypeVar("_Result")
_Write = tuple[Callable[[sa.Connection], Any], "Future[Any]"]


def _last(column: sa.Column[Any], order: sa.Column[Any]) -> Any:
    of_conversation = column.table.c.conversation == conversations.c.id
    query = sa.select(column).where(of_conversation).order_by(order.desc()).limit(1)
    return query.scalar_subquery()


def _aggregate(value: sa.Function[Any]) -> Any:
    return sa.select(value).where(events.c.conversation == conversations.c.id).scalar_subquery()


_STATE = sa.select(
    *conversations.c,
    _last(events.c.version, events.c.version).label("version"),
    _last(events.c.checkpoint, events.c.version).label("checkpoint"),
    _last(events.c.embedder, events.c.version).label("embedder"),
    _aggregate(sa.func.max(events.c.step)).label("step"),
    _aggregate(sa.func.sum(events.c.tokens)).label("sampled"),
    _last(operations.c.seq, operations.c.seq).label("seq"),
    _last(snapshots.c.body, snapshots.c.seq).label("snapshot"),
).where(
    conversations.c.id == sa.bindparam("conversation"),
    conversations.c.owner == sa.bindparam("owner"),
)
_READ = (
    sa.select(events.c.version, events.c.kind, events.c.parent, events.c.chunks)
    .where(events.c.conversation == sa.bindparam("conversation"))
    .where(events.c.kind.in_(("item", "step", "stopped", "deleted", "fork")))
    .order_by(events.c.version)
)


class ConversationLog:
    """Reads and writes of the database.

    Calls block and are thread-safe; several processes may share one database.

    Args:
        engine: From `atommem.serve.schema.open_database`.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        is_sqlite = engine.dialect.name == "sqlite"
        self._insert: Any = (sqlite if is_sqlite else postgresql).insert
        self._write_engine = engine.execution_options(writes=True)
        # SQLite has one writer: it commits all waiting writes together, with one fsync.
        threads, self._batch = (1, 1000) if is_sqlite else (_WRITERS, 1)
        self._waiting: SimpleQueue[_Write] = SimpleQueue()
        self._writers = ThreadPoolExecutor(threads, thread_name_prefix="atommem-commit")

    def submit(self, work: Callable[[sa.Connection], _Result]) -> Future[_Result]:
        """Run `work` in a transaction; the future is done when it is committed or rolled back.

        It may run again, if another write of the same transaction fails.
        """
        future: Future[_Result] = Future()
        self._waiting.put((work, future))
        self._writers.submit(self._write_waiting)
        return future

    def _write_waiting(self) -> None:
        batch: list[_Write] = []
        with suppress(Empty):
            while len(batch) < self._batch:
                work, future = self._waiting.get_nowait()
                if future.set_running_or_notify_cancel():
                    batch.append((work, future))
        if batch:  # otherwise another thread took them
            self._write(batch)

    def _write(self, batch: Sequence[_Write]) -> None:
        """Commit writes together, or each on its own if one fails."""
        try:
            with self._write_engine.begin() as connection:
                results = [work(connection) for work, _ in batch]
        except BaseException as error:
            if len(batch) == 1:
                batch[0][1].set_exception(error)
            else:
                for write in batch:
                    self._write([write])
        else:
            for (_, future), result in zip(batch, results, strict=True):
                future.set_result(result)

    def create(
        self, owner: str, metadata: Mapping[str, str], request: RequestKey | None = None
    ) -> ConversationInfo:
        """Create a conversation, or return the one that `request` created before."""
        return self._create(
            owner, request, lambda connection: _new_conversation(connection, owner, metadata)
        )

    def _create(
        self,
        owner: str,
        request: RequestKey | None,
        work: Callable[[sa.Connection], ConversationInfo],
    ) -> ConversationInfo:
        def create(connection: sa.Connection) -> ConversationInfo:
            found = _find_request(connection, request)
            if found is not None:
                return _info(connection, found.conversation, owner)
            info = work(connection)
            _record_request(connection, request, info.id)
            return info

        try:
            return self.submit(create).result()
        except sa.exc.IntegrityError:  # another gateway handled the same request
            found = self.find_request(request)
            if found is None:
                raise
            return self.info(found.conversation, owner)

    def find_request(self, request: RequestKey | None) -> sa.Row[Any] | None:
        """Return ``conversation`` and ``version`` that `request` wrote, or None.

        Raises:
            KeyReusedError: The key came with a different request.
        """
        with self.engine.begin() as connection:
            return _find_request(connection, request)

    def info(self, conversation: str, owner: str) -> ConversationInfo:
        """Return a conversation.

        Raises:
            NotFoundError: `owner` has no conversation with this id.
        """
        with self.engine.begin() as connection:
            return _info(connection, conversation, owner)

    def conversations(
        self, owner: str | None = None, *, after: str = "", limit: int | None = None
    ) -> list[ConversationInfo]:
        """Return the conversations of an owner (unset: all), newest first.

        Raises:
            NotFoundError: `owner` has no conversation `after`.
        """
        columns = conversations.c
        order = columns.created_at.desc(), columns.id.desc()
        query = sa.select(conversations).order_by(*order).limit(limit)
        if owner is not None:
            query = query.where(columns.owner == owner)
        if after:
            last = self.info(after, owner or "")
            place = sa.tuple_(columns.created_at, columns.id)
            query = query.where(place < sa.tuple_(last.created_at, last.id))
        return [ConversationInfo(**row) for row in self._rows(query)]

    def update(
        self, conversation: str, owner: str, metadata: Mapping[str, str]
    ) -> ConversationInfo:
        """Replace the metadata. Raises like `info`."""

        def update(connection: sa.Connection) -> ConversationInfo:
            _info(connection, conversation, owner)
            row = conversations.update().where(conversations.c.id == conversation)
            connection.execute(row.values(metadata=dict(metadata)))
            return _info(connection, conversation, owner)

        return self.submit(update).result()

    def erase(self, conversation: str, owner: str) -> None:
        """Delete a conversation with all its rows. Raises like `info`."""

        def erase(connection: sa.Connection) -> None:
            _info(connection, conversation, owner, lock=True)
            for table in (events, operations, snapshots, vectors, requests):
                connection.execute(table.delete().where(table.c.conversation == conversation))
            connection.execute(conversations.delete().where(conversations.c.id == conversation))

        self.submit(erase).result()
        if self.engine.dialect.name == "sqlite":  # the write-ahead log still holds the old pages
            with self.engine.connect() as connection:
                driver = connection.connection.cursor()
                driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def commit(
        self,
        conversation: str,
        seq: int,
        new: Sequence[Event],
        written: Sequence[Operation] = (),
        *,
        cached: TextVectors | None = None,
        snapshot: Snapshot | None = None,
        request: RequestKey | None = None,
    ) -> Future[None]:
        """Append events and operations to a conversation, all or nothing.

        Args:
            conversation: Its id.
            seq: Number of operations that it has.
            new: At least one event, with consecutive versions.
            written: Operations of the step among `new`, or else of the first event.
            cached: Vectors of new texts.
            snapshot: The memory after `written`.
            request: The request that writes this.

        Raises:
            ConflictError: By the future: another writer was first, or the conversation is gone.
        """
        version = next((event.version for event in new if event.kind == "step"), new[0].version)
        key = {"conversation": conversation}
        rows = [
            {**key, "seq": number, "version": version, "body": to_json(operation)}
            for number, operation in enumerate(written, seq)
        ]

        def insert(connection: sa.Connection) -> None:
            connection.execute(events.insert(), [{**key, **vars(event)} for event in new])
            _record_request(connection, request, conversation, new[0].version)
            if rows:
                connection.execute(operations.insert(), rows)
            if cached is not None and len(cached.digests):
                values = self._insert(vectors).on_conflict_do_nothing()
                connection.execute(values, _vector_rows(conversation, cached))
            if snapshot is not None:
                place = {**key, "seq": seq + len(rows)}
                same = snapshots.delete().where(  # of another embedder
                    *(snapshots.c[name] == value for name, value in place.items())
                )
                connection.execute(same)
                connection.execute(snapshots.insert().values(**place, body=snapshot.to_json()))

        def append(connection: sa.Connection) -> None:
            try:
                insert(connection)
            except sa.exc.IntegrityError as error:
                raise ConflictError(
                    f"conversation {conversation} has changed or was deleted."
                ) from error

        return self.submit(append)

    def load(self, conversation: str, owner: str, embedder: str, full: bool = False) -> LogState:
        """Load the state of a conversation with the vectors of `embedder`. Raises like `info`.

        With `full`, load all operations instead of those since the newest snapshot.
        """
        with self.engine.begin() as connection:
            found = {"conversation": conversation, "owner": owner}
            row = connection.execute(_STATE, found).one_or_none()
            if row is None:
                raise NotFoundError(f"there is no conversation {conversation!r}.")
            seq = 0 if row.seq is None else row.seq + 1
            start = None if row.snapshot is None or full else Snapshot.from_json(row.snapshot)
            first = 0 if start is None else start.contents.position
            cached = connection.execute(
                sa.select(vectors.c.digest, vectors.c.row).where(
                    vectors.c.conversation == conversation, vectors.c.embedder == embedder
                )
            ).all()
            return LogState(
                info=ConversationInfo(*row[:4]),
                version=row.version or 0,
                seq=seq,
                turns=0 if row.step is None else row.step + 1,
                sampled=int(row.sampled or 0),
                checkpoint=row.checkpoint,
                embedder=row.embedder,
                snapshot=start,
                operations=_operations(connection, conversation, first, seq),
                vectors=_text_vectors(embedder, cached) if cached else None,
                unread=_unread(connection, conversation),
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
        """Return events after a version, oldest first; or with `newest` before it, newest first."""
        query = sa.select(events).where(events.c.conversation == conversation).limit(limit)
        if kinds:
            query = query.where(events.c.kind.in_(kinds))
        if newest:
            query = query.order_by(events.c.version.desc())
            query = query.where(events.c.version < after) if after else query
        else:
            query = query.order_by(events.c.version).where(events.c.version > after)
        return [_event(row) for row in self._rows(query)]

    def items(self, conversation: str, kinds: Sequence[str]) -> tuple[Unread, list[Event]]:
        """Return unread items, and undeleted events of these kinds, oldest first."""
        found = self.events(conversation, (*kinds, "deleted"))
        deleted = {event.parent for event in found if event.kind == "deleted"}
        with self.engine.begin() as connection:
            unread = _unread(connection, conversation)
        return unread, [
            event for event in found if event.kind != "deleted" and event.version not in deleted
        ]

    def item(self, conversation: str, item: str) -> Event:
        """Return the item event with this id.

        Raises:
            NotFoundError: It does not exist or was deleted.
        """
        for event in self.items(conversation, ("item",))[1]:
            if event.body["id"] == item:
                return event
        raise NotFoundError(f"there is no item {item!r} in this conversation.")

    def items_of_source(self, conversation: str, owner: str, name: str) -> list[Event]:
        """Return the items with a source name. Raises like `info`."""
        self.info(conversation, owner)
        found = self.items(conversation, ("item",))[1]
        return [item for item in found if has_source(item, name)]

    def response(self, response: str, owner: str) -> tuple[str, Event, Event | None]:
        """Return conversation, question and answer (None: unanswered) of a response.

        Raises:
            NotFoundError: `owner` has no response with this id.
        """
        query = sa.select(events).join(conversations, conversations.c.id == events.c.conversation)
        query = query.where(conversations.c.owner == owner, events.c.response == response)
        rows = self._rows(query.order_by(events.c.version))
        if not rows:
            raise NotFoundError(f"there is no response {response!r}.")
        answer = _event(rows[1]) if len(rows) > 1 else None
        return rows[0]["conversation"], _event(rows[0]), answer

    def fork(
        self, conversation: str, owner: str, at: int | None, request: RequestKey | None = None
    ) -> ConversationInfo:
        """Copy a conversation as it was after `at` operations (unset: all), with nothing unread."""

        def fork(connection: sa.Connection) -> ConversationInfo:
            source = _info(connection, conversation, owner, lock=True)
            length = _length(connection, conversation)
            end = length if at is None else at
            query = sa.select(sa.func.max(events.c.version)).where(
                events.c.conversation == conversation
            )
            if end < length:
                query = sa.select(operations.c.version).where(
                    operations.c.conversation == conversation, operations.c.seq == end - 1
                )
            version = int(connection.scalar(query) or 0)
            info = _new_conversation(connection, owner, source.metadata)
            bounds = {
                events: events.c.version <= version,
                operations: operations.c.seq < end,
                snapshots: snapshots.c.seq <= end,
                vectors: sa.true(),
            }
            for table, bound in bounds.items():
                # Responses stay with the conversation that gave them.
                changed = {"conversation": sa.literal(info.id), "response": sa.null()}
                columns = [changed.get(column.name, column) for column in table.c]
                rows = sa.select(*columns).where(table.c.conversation == conversation, bound)
                connection.execute(table.insert().from_select(table.c.keys(), rows))
            last = sa.select(events.c.checkpoint, events.c.embedder).where(
                events.c.conversation == info.id, events.c.version == version
            )
            made = connection.execute(last).mappings().one_or_none()
            if made is not None:
                event = Event(
                    "fork",
                    {"conversation": conversation, "at": end},
                    version=version + 1,
                    created_at=info.created_at,
                    **made,
                )
                connection.execute(events.insert().values(conversation=info.id, **vars(event)))
            return info

        return self._create(owner, request, fork)

    def operations(
        self, conversation: str, first: int, limit: int | None = None, *, version: int | None = None
    ) -> list[dict[str, Any]]:
        """Return operations from number `first` (or those of one event) as JSON values."""
        query = sa.select(
            operations.c.seq, operations.c.version, events.c.checkpoint, operations.c.body
        ).join(
            events,
            sa.and_(
                events.c.conversation == operations.c.conversation,
                events.c.version == operations.c.version,
            ),
        )
        query = query.where(operations.c.conversation == conversation, operations.c.seq >= first)
        if version is not None:
            query = query.where(operations.c.version == version)
        rows = self._rows(query.order_by(operations.c.seq).limit(limit))
        return [
            {"seq": row["seq"], "version": row["version"], "checkpoint": row["checkpoint"]}
            | row["body"]
            for row in rows
        ]

    def length(self, conversation: str) -> int:
        """Return the number of operations."""
        with self.engine.begin() as connection:
            return _length(connection, conversation)

    def memory_at(self, conversation: str, seq: int | None = None) -> Contents:
        """Replay the memory as it was after `seq` operations (unset: all)."""
        with self.engine.begin() as connection:
            seq = _length(connection, conversation) if seq is None else seq
            query = sa.select(snapshots.c.body).where(
                snapshots.c.conversation == conversation, snapshots.c.seq <= seq
            )
            body = connection.scalar(query.order_by(snapshots.c.seq.desc()).limit(1))
            start = None if body is None else Snapshot.from_json(body)
            first = 0 if start is None else start.contents.position
            return replay(_operations(connection, conversation, first, seq), start)

    def _rows(self, query: sa.Select[Any]) -> Sequence[sa.RowMapping]:
        with self.engine.begin() as connection:
            return connection.execute(query).mappings().all()


def _new_conversation(
    connection: sa.Connection, owner: str, metadata: Mapping[str, str]
) -> ConversationInfo:
    info = ConversationInfo(
        f"conv_{secrets.token_hex(16)}", owner, int(time.time()), dict(metadata)
    )
    connection.execute(conversations.insert().values(vars(info)))
    return info


def _info(
    connection: sa.Connection, conversation: str, owner: str, *, lock: bool = False
) -> ConversationInfo:
    query = sa.select(conversations).where(
        conversations.c.id == conversation, conversations.c.owner == owner
    )
    row = connection.execute(query.with_for_update() if lock else query).mappings().one_or_none()
    if row is None:
        raise NotFoundError(f"there is no conversation {conversation!r}.")
    return ConversationInfo(**row)


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


def _length(connection: sa.Connection, conversation: str) -> int:
    query = sa.select(sa.func.max(operations.c.seq)).where(
        operations.c.conversation == conversation
    )
    last = connection.scalar(query)
    return 0 if last is None else int(last) + 1


def _operations(
    connection: sa.Connection, conversation: str, first: int, last: int
) -> list[Operation]:
    query = sa.select(operations.c.body).where(
        operations.c.conversation == conversation,
        operations.c.seq >= first,
        operations.c.seq < last,
    )
    bodies = connection.scalars(query.order_by(operations.c.seq))
    return [operation_from_json(body) for body in bodies]


def _event(row: sa.RowMapping) -> Event:
    return Event(**{str(name): value for name, value in row.items() if name != "conversation"})


def _unread(connection: sa.Connection, conversation: str) -> Unread:
    unread: Unread = {}
    for row in connection.execute(_READ, {"conversation": conversation}):
        update_unread(unread, *row)
    return unread


def _vector_rows(conversation: str, cached: TextVectors) -> list[dict[str, Any]]:
    digests, rows = cached.digests.view(np.int64).tolist(), cached.rows.astype(np.float16)
    key = {"conversation": conversation, "embedder": cached.embedder}
    return [
        {**key, "digest": digest, "row": row.tobytes()}
        for digest, row in dict(zip(digests, rows, strict=True)).items()
    ]


def _text_vectors(embedder: str, rows: Sequence[Any]) -> TextVectors:
    digests = np.array([row.digest for row in rows], dtype=np.int64).view(np.uint64)
    vectors_ = np.stack([np.frombuffer(row.row, dtype=np.float16) for row in rows])
    return TextVectors(embedder, digests, vectors_.astype(np.float32))
