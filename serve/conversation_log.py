"""Durable log of all conversations: events, memory operations, and cached vectors."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

import sqlalchemy as sa

from atommem.errors import DataError
from atommem.memory.log import Contents, operation_from_json, replay
from atommem.memory.store import TextVectors
from atommem.serve import schema
from atommem.serve.schema import ConversationInfo, Event, RequestKey, conversations, events, vectors
from atommem.session_state import SessionState

_Create = Callable[[sa.Connection], ConversationInfo]
_RETRIED = 3600  # seconds within which a client retries
_Write = tuple[Callable[[sa.Connection], None], "Future[None]"]


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
        self,
        owner: str,
        metadata: Mapping[str, str],
        request: RequestKey | None = None,
        prefix: str = schema.LISTED,
        scope: Mapping[str, str | None] = {},
    ) -> ConversationInfo:
        """Create a conversation, listed if `LISTED`, or return the one that `request` created.

        With a `scope`, return the newest with this metadata; gateways at once create one.
        """

        def new(connection: sa.Connection) -> ConversationInfo:
            if scope:
                if not self._is_sqlite:  # which has one writer
                    name = sa.func.hashtext(f"{owner} {scope}")
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(name)))
                held = schema.conversations_of(owner, scope, self._is_sqlite).limit(1)
                held = held.where(conversations.c.id.startswith(prefix, autoescape=True))
                for row in connection.execute(held):
                    return ConversationInfo(*tuple(row))
            return schema.insert_conversation(connection, owner, metadata, prefix)

        return self._create(owner, request, new)

    def _create(self, owner: str, request: RequestKey | None, create: _Create) -> ConversationInfo:
        try:
            with self._write_engine.begin() as connection:
                if found := schema.find_request(connection, request):
                    return schema.find_conversation(connection, found.conversation, owner)
                info = create(connection)
                schema.record_request(connection, request, info.id)
                return info
        except sa.exc.IntegrityError:  # another gateway handled the same request
            return self._create(owner, request, create)

    def request_key(self, parts: Sequence[bytes], retries: bool) -> RequestKey:
        """Return the key of a request without one.

        It repeats an equal one that failed; if it `retries`, also another of the last hour: the
        first try may never have come.
        """
        key = schema.sha256(*parts)
        since = time.time() - _RETRIED if retries else float("inf")
        rows = self._rows(schema.failure_of(key))
        repeats = any(row.failed or row.made > since for row in rows)
        renews = not repeats and (bool(rows) or not retries)
        return RequestKey(key, key, derived=True, renews=renews)

    def mark(self, request: RequestKey | None, failed: bool) -> None:
        """Record whether a request failed; only those without a key of their own need it."""
        if request is not None and request.derived:
            keys = [request.key, *(request.derive(name).key for name in schema.PARTS)]
            with self._write_engine.begin() as connection:
                rows = schema.requests.update().where(schema.requests.c.key.in_(keys))
                connection.execute(rows.values(failed=failed))

    def written_by(
        self, request: RequestKey | None, conversation: str = "", count: int = 1
    ) -> list[Event]:
        """Return the first `count` events that a request wrote before."""
        if request is None or request.renews:
            return []
        with self.engine.begin() as connection:
            row = schema.find_request(connection, request)
        if row is None or row.version is None:
            return []
        return self.events(conversation or row.conversation, after=row.version - 1, limit=count)

    def info(self, conversation: str, owner: str) -> ConversationInfo:
        """Return a conversation; raise NotFoundError if `owner` has none with this id."""
        with self.engine.begin() as connection:
            return schema.find_conversation(connection, conversation, owner)

    def conversations(
        self,
        owner: str,
        *,
        after: str = "",
        limit: int | None = None,
        prefix: str = schema.LISTED,
        where: Mapping[str, str | None] = {},
    ) -> list[ConversationInfo]:
        """Return the conversations with the metadata `where` (None: without it), newest first."""
        query = schema.conversations_of(owner, where, self._is_sqlite).limit(limit)
        query = query.where(conversations.c.id.startswith(prefix, autoescape=True))
        if after:  # it may be erased meanwhile
            query = query.where(conversations.c.id < after)
        return [ConversationInfo(*tuple(row)) for row in self._rows(query)]

    def update(self, conversation: str, owner: str, values: Mapping[str, str]) -> ConversationInfo:
        with self._write_engine.begin() as connection:
            info = schema.find_conversation(connection, conversation, owner)
            row = conversations.update().where(conversations.c.id == conversation)
            connection.execute(row.values(metadata=dict(values)))
            return replace(info, metadata=dict(values))

    def erase(self, conversation: str, owner: str) -> None:
        """Delete a conversation with all its rows."""
        with self._write_engine.begin() as connection:
            schema.find_conversation(connection, conversation, owner, lock=True)
            for table in (events, vectors, schema.requests):
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
        cached_rows = schema.vector_rows(conversation, cached) if cached else []

        def append(connection: sa.Connection) -> None:
            try:
                connection.execute(events.insert(), rows)
                if deleted := [event.parent for event in new if event.kind == "deleted"]:
                    columns = schema.requests.c
                    gone = columns.conversation == conversation, columns.version.in_(deleted)
                    connection.execute(schema.requests.delete().where(*gone))
                schema.record_request(connection, request, conversation, new[0].version)
                if cached_rows:
                    insert = schema.insert_of(connection, vectors).on_conflict_do_nothing()
                    connection.execute(insert, cached_rows)
            except sa.exc.IntegrityError as error:
                raise schema.ConflictError(f"conversation {conversation} has changed.") from error

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

    def load(
        self, conversation: str, owner: str, embedder: str
    ) -> tuple[schema.LogState, SessionState]:
        """Load a conversation's state and session, with the vectors of `embedder`."""
        self.info(conversation, owner)  # raises
        found = self._rows(schema.events_of(conversation, *schema.STATE))
        state = schema.state_of(found)
        operations = tuple(operation_from_json(op) for row in found for op in row.operations)
        cached = vectors.c.conversation == conversation, vectors.c.embedder == embedder
        rows = self._rows(sa.select(vectors.c.digest, vectors.c.row).where(*cached))
        held = operations, schema.text_vectors(embedder, rows) if rows else None
        return state, SessionState(conversation, state.steps, state.sampled, embedder, *held)

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
        parents: Collection[int] | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> list[Event]:
        """Return events after a version, or of `parents`, oldest first."""
        query = schema.events_of(conversation).where(events.c.version > after).limit(limit)
        if parents is not None:
            query = query.where(events.c.parent.in_(parents))
        if kinds:
            query = query.where(events.c.kind.in_(kinds))
        return [schema.event_of(row) for row in self._rows(query)]

    def items(
        self,
        conversation: str,
        kinds: Sequence[str] = schema.ITEMS,
        *,
        ids: Sequence[str] = (),
        sources: Collection[str] | None = None,
        newest: bool = False,
        after: str = "",
        limit: int | None = None,
        name: str = "",
    ) -> list[Event]:
        """Return the texts, questions and answers that were not deleted, oldest first.

        With `name`, only items whose name begins with it; with `sources`, only those with one of
        these names or ids. Raises NotFoundError if the conversation never had the item `after`.
        """
        columns, order = events.c, events.c.version
        here = columns.conversation == conversation
        deleted = sa.select(columns.parent).where(here, columns.kind == "deleted")
        query = sa.select(events).where(here, columns.kind.in_(kinds), order.not_in(deleted))
        if ids:
            query = query.where(columns.item.in_(ids))
        named = columns.body[("item", "name")].as_string()
        if sources is not None:
            query = query.where(columns.item.in_(sources) | named.in_(sources))
        if name:
            query = query.where(sa.func.substr(named, 1, len(name)) == name)
        if after:
            rows = self._rows(sa.select(sa.func.max(order)).where(here, columns.item == after))
            if rows[0][0] is None:
                raise schema.NotFoundError(f"there is no item {after!r} in this conversation.")
            query = query.where(order < rows[0][0] if newest else order > rows[0][0])
        query = query.order_by(order.desc() if newest else order).limit(limit)
        return [schema.event_of(row) for row in self._rows(query)]

    def item(self, owner: str, item: str) -> Event:
        """Return a text, question or answer of any conversation of `owner`."""
        query = sa.select(events.c.conversation).join(conversations)
        query = query.where(conversations.c.owner == owner, events.c.item == item)
        for row in self._rows(query):
            for found in self.items(row.conversation, ids=[item]):
                return found
        raise schema.NotFoundError(f"there is no item {item!r}.")

    def unread(
        self, conversation: str, versions: Sequence[int]
    ) -> tuple[schema.Unread, dict[int, str]]:
        """Return which of the items with these versions are unread, and why others remain so."""
        columns = [column for column in schema.STATE if column.name != "operations"]
        version, kind, here = events.c.version, events.c.kind, events.c.conversation == conversation
        last = sa.select(sa.func.max(version)).where(here, kind.in_(schema.ITEMS)).scalar_subquery()
        matters = version.in_(versions) | events.c.parent.in_(versions) | (version == last)
        rows = self._rows(schema.events_of(conversation, *columns).where(matters))
        stops = self.events(conversation, ("stopped",), parents=versions)
        reasons = {e.parent or 0: e.body["reason"] for e in stops if e.body.get("unread")}
        unread = schema.state_of(rows).unread
        return {at: left for at, left in unread.items() if at in versions}, reasons

    def response(self, response: str, owner: str) -> tuple[str, Event, Event | None]:
        """Return conversation, question and answer (None: unanswered) of a response."""
        query = sa.select(events.c.conversation).join(conversations)
        query = query.where(conversations.c.owner == owner, events.c.response == response)
        for row in self._rows(query.limit(1)):
            ids = schema.question_id(response), schema.answer_id(response)
            found = self.items(row.conversation, ids=ids)
            if found and found[0].kind == "ask":
                return row.conversation, found[0], found[1] if len(found) > 1 else None
        raise schema.NotFoundError(f"there is no response {response!r}.")

    def fork(
        self, conversation: str, owner: str, at: int | None, request: RequestKey | None = None
    ) -> ConversationInfo:
        """Copy a conversation, or (`at`) as it was after some operations, where nothing goes on."""

        def fork(connection: sa.Connection) -> ConversationInfo:
            source = schema.find_conversation(connection, conversation, owner)
            found, left, state = list[Event](), at, schema.LogState()
            for event in map(schema.event_of, connection.execute(schema.events_of(conversation))):
                if left == 0:
                    break
                if left is not None:
                    event = replace(event, operations=event.operations[:left])
                    left -= len(event.operations)
                state.advance(event)
                found.append(event)
            if left:
                raise DataError(f"at={at}: this conversation has {(at or 0) - left} operations.")
            body = {"reason": "the copy ends before it", "unread": True}
            for parent in () if at is None else (*state.unread, *state.asked):
                last = vars(found[-1])
                made = {name: last[name] for name in ("created_at", "checkpoint", "embedder")}
                found.append(Event("stopped", body, parent=parent, version=len(found) + 1, **made))
            return _copy(connection, conversation, found, owner, source.metadata, schema.LISTED)

        return self._create(owner, request, fork)

    def branch(
        self, conversation: str, owner: str, ask: Event, response: str, key: RequestKey | None
    ) -> str:
        """Return where `response` continues: here, or in a copy without what came after `ask`."""
        later = self.items(conversation, after=str(ask.item))
        asked = [event.response for event in later if event.kind == "ask"]
        if not asked or response in asked:
            return conversation
        end = min(event.version for event in later if event.kind != "answer")
        meta = self.info(conversation, owner).metadata

        def branch(connection: sa.Connection) -> ConversationInfo:
            rows = connection.execute(schema.events_of(conversation).where(events.c.version < end))
            found = map(schema.event_of, rows)
            return _copy(connection, conversation, found, owner, meta, "resp_")

        return self._create(owner, key, branch).id

    def operations(
        self, conversation: str, first: int = 0, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Return operations from number `first` as JSON values."""
        names = ("version", "created_at", "checkpoint")
        columns = *(events.c[name] for name in names), events.c.operations
        found = [
            {**{name: row._mapping[name] for name in names}, **operation}
            for row in self._rows(schema.events_of(conversation, *columns))
            for operation in row.operations
        ]
        return [{"seq": seq, **row} for seq, row in enumerate(found[first:][:limit], first)]

    def memory_at(self, conversation: str, length: int | None = None) -> tuple[Contents, int]:
        """Replay the memory after `length` operations (unset: all); also return how many it has."""
        rows = self._rows(schema.events_of(conversation, events.c.operations))
        found = [operation_from_json(item) for row in rows for item in row.operations]
        if length is not None and length > len(found):
            raise DataError(f"at={length}: this conversation has {len(found)} operations.")
        return replay(found[:length]), len(found)

    def _rows(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        with self.engine.begin() as connection:
            return connection.execute(query).all()


def _copy(
    connection: sa.Connection, conversation: str, found: Iterable[Event], *of: Any
) -> ConversationInfo:
    """Make a conversation of events; responses stay with the conversation that gave them."""
    info = schema.insert_conversation(connection, *of)
    if rows := [{**vars(event), "conversation": info.id, "response": None} for event in found]:
        connection.execute(events.insert(), rows)
    held = sa.select(sa.literal(info.id), *[*vectors.c][1:])
    held = held.where(vectors.c.conversation == conversation)
    connection.execute(vectors.insert().from_select(vectors.c.keys(), held))
    return info
