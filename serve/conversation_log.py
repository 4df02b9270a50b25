"""The log of all conversations: what is committed, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from atommem.memory.log import Contents, Operation, Snapshot, replay
from atommem.memory.store import TextVectors
from atommem.serve.group_commit import GroupCommit
from atommem.serve.log_rows import (
    ENDS,
    About,
    ConflictError,
    Event,
    Loaded,
    NotFoundError,
    RequestKey,
    Unread,
    append_events,
    event_of,
    find_about,
    find_request,
    log_length,
    new_conversation,
    newest_snapshot,
    note_request,
    operation_rows,
    operations_between,
    text_vectors,
    unread_items,
    vector_rows,
)
from atommem.serve.schema import conversations, events, operations, requests, snapshots, vectors

SNAPSHOT_EVERY = 256
"""Operations between two snapshots."""
_OF_A_CONVERSATION = (events, operations, snapshots, vectors, requests)
_Result = TypeVar("_Result")


class ConversationLog:
    """All reads and writes. Calls block; several threads may make them, and several processes use one database.

    Args:
        engine: `atommem.serve.schema.open_database`.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self._insert: Any = (sqlite if engine.dialect.name == "sqlite" else postgresql).insert
        self._commits = GroupCommit(engine)

    def write(self, work: Callable[[sa.Connection], _Result]) -> _Result:
        """A transaction: what `work` wrote is there when this returns, and nothing of it when it raises.

        It may be done again from the start: what it is told of the database holds for one time.
        """
        return self._commits.submit(work).result()

    def create(
        self, owner: str, metadata: Mapping[str, str], request: RequestKey | None = None
    ) -> About:
        """A new conversation; or the one that this request made when it came before."""
        return self._made(
            owner, request, lambda connection: new_conversation(connection, owner, metadata)
        )

    def _made(
        self, owner: str, request: RequestKey | None, work: Callable[[sa.Connection], About]
    ) -> About:
        def once(connection: sa.Connection) -> About:
            found = find_request(connection, request)
            if found is not None:
                return find_about(connection, found.conversation, owner)
            about = work(connection)
            note_request(connection, request, about.id)
            return about

        try:
            return self.write(once)
        except sa.exc.IntegrityError:  # another gateway was faster
            if (wrote := self.wrote(request)) is None:
                raise
            return self.about(wrote.conversation, owner)

    def wrote(self, request: RequestKey | None) -> sa.Row[Any] | None:
        """The ``conversation`` and ``version`` that a request wrote when it came before; None: it did not.

        Raises:
            KeyReusedError: It was another one.
        """
        with self.engine.begin() as connection:
            return find_request(connection, request)

    def about(self, conversation: str, owner: str) -> About:
        """What it is.

        Raises:
            NotFoundError: `owner` has none of this id.
        """
        with self.engine.begin() as connection:
            return find_about(connection, conversation, owner)

    def all(
        self, owner: str | None = None, *, behind: str = "", limit: int | None = None
    ) -> list[About]:
        """Every conversation, of every owner or of one, newest first; those behind one of them, as many as asked for.

        Raises:
            NotFoundError: `owner` has none of the id `behind`.
        """
        of = conversations.c
        query = sa.select(conversations).order_by(of.created_at.desc(), of.id.desc()).limit(limit)
        if owner is not None:
            query = query.where(of.owner == owner)
        if behind:
            last = self.about(behind, owner or "")
            query = query.where(
                sa.tuple_(of.created_at, of.id) < sa.tuple_(last.created_at, last.id)
            )
        return [About(**row) for row in self._rows(query)]

    def update(self, conversation: str, owner: str, metadata: Mapping[str, str]) -> About:
        """Replace its metadata. Raises as `about`."""

        def work(connection: sa.Connection) -> About:
            find_about(connection, conversation, owner)
            of_it = conversations.update().where(conversations.c.id == conversation)
            connection.execute(of_it.values(metadata=dict(metadata)))
            return find_about(connection, conversation, owner)

        return self.write(work)

    def erase(self, conversation: str, owner: str) -> None:
        """Everything of it, for good. Raises as `about`."""

        def work(connection: sa.Connection) -> None:
            find_about(
                connection, conversation, owner, lock=True
            )  # whoever commits to it waits, and finds it gone
            for table in _OF_A_CONVERSATION:
                connection.execute(table.delete().where(table.c.conversation == conversation))
            connection.execute(conversations.delete().where(conversations.c.id == conversation))

        self.write(work)
        if (
            self.engine.dialect.name == "sqlite"
        ):  # the deleted pages are still in the write-ahead log
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
        request: RequestKey | None = None,
    ) -> Future[None]:
        """Append to a conversation, all or nothing.

        Args:
            conversation: Its id.
            version, seq: Of what these events and operations follow on.
            new: At least one event.
            written: The operations that the step among them brought, or else the first of them.
            checkpoint, embedder: What made them.
            cached: Vectors of new texts.
            snapshot: Of the memory after `written`, where one is due.
            request: What is written at its behest: only if it has written nothing yet.

        Raises:
            ConflictError: In the future: it has gone on since, or is gone.
        """
        lines = [replace(event, version=number) for number, event in enumerate(new, version + 1)]
        of = next((line.version for line in lines if line.kind == "step"), version + 1)
        rows = operation_rows(
            conversation, seq, written, [(of, checkpoint, embedder)] * len(written)
        )

        def insert(connection: sa.Connection) -> None:
            append_events(connection, conversation, lines, checkpoint)
            note_request(connection, request, conversation, version + 1)
            if rows:
                connection.execute(operations.insert(), rows)
            if cached is not None and len(cached.digests):
                new_vectors = self._insert(vectors).on_conflict_do_nothing()
                connection.execute(new_vectors, vector_rows(conversation, cached))
            if snapshot is not None:
                of_it = (
                    snapshots.c.conversation == conversation,
                    snapshots.c.seq == seq + len(rows),
                )
                connection.execute(snapshots.delete().where(*of_it))  # of another embedder
                values = {
                    "conversation": conversation,
                    "seq": seq + len(rows),
                    "body": snapshot.to_json(),
                }
                connection.execute(snapshots.insert().values(values))

        def append(connection: sa.Connection) -> None:
            try:
                insert(connection)
            except sa.exc.IntegrityError as error:
                raise ConflictError(
                    f"conversation {conversation} has gone on after version {version}."
                ) from error

        return self._commits.submit(append)

    def load(self, conversation: str, owner: str, embedder: str, whole: bool = False) -> Loaded:
        """All that is needed to go on with it.

        Args:
            conversation, owner: As of `about`, which this raises as.
            embedder: Whose vectors.
            whole: With its whole log, from no snapshot on.
        """
        with self.engine.begin() as connection:
            ends = connection.execute(ENDS, {"of": conversation, "whose": owner}).one_or_none()
            if ends is None:
                raise NotFoundError(f"there is no conversation {conversation!r}.")
            about = About(*ends[:4])
            seq = 0 if ends.seq is None else ends.seq + 1
            newest = None if ends.snapshot is None else Snapshot.from_json(ends.snapshot)
            start = None if whole else newest
            made_with = ends.embedder
            if newest is not None and newest.contents.position == seq:
                made_with = newest.embedder  # it may have moved since its last operation
            since = operations_between(
                connection, conversation, 0 if start is None else start.contents.position, seq
            )
            found = sa.select(vectors.c.digest, vectors.c.row)
            cached = connection.execute(
                found.where(vectors.c.conversation == conversation, vectors.c.embedder == embedder)
            ).all()
            return Loaded(
                about,
                ends.version or 0,
                seq,
                0 if ends.step is None else ends.step + 1,
                int(ends.sampled or 0),
                ends.checkpoint,
                made_with,
                start,
                since,
                text_vectors(embedder, cached) if cached else None,
                unread_items(connection, conversation),
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
        return [event_of(row) for row in self._rows(query)]

    def items(self, conversation: str, kinds: Sequence[str]) -> tuple[Unread, list[Event]]:
        """Events of these kinds, oldest first, without deleted items; and which are unread."""
        found = self.events(conversation, (*kinds, "deleted"))
        gone = {event.of for event in found if event.kind == "deleted"}
        with self.engine.begin() as connection:
            unread = unread_items(connection, conversation)
        return unread, [
            event for event in found if event.kind != "deleted" and event.version not in gone
        ]

    def item(self, conversation: str, item: str) -> Event:
        """A text by its id.

        Raises:
            NotFoundError: There is none, or it was deleted.
        """
        found = [
            event for event in self.items(conversation, ("item",))[1] if event.body["id"] == item
        ]
        if not found:
            raise NotFoundError(f"there is no item {item!r} in this conversation.")
        return found[0]

    def fork(
        self, conversation: str, owner: str, at: int | None, request: RequestKey | None = None
    ) -> About:
        """A conversation that is another one as `at` operations had left it (unset: all); it has nothing unread."""

        def work(connection: sa.Connection) -> About:
            source = find_about(
                connection, conversation, owner, lock=True
            )  # whoever commits to it waits
            length = log_length(connection, conversation)
            end = length if at is None else at
            about = new_conversation(connection, owner, source.metadata)
            last = sa.select(operations.c.version).where(
                operations.c.conversation == conversation, operations.c.seq == end - 1
            )
            newest = sa.select(sa.func.max(events.c.version)).where(
                events.c.conversation == conversation
            )
            version = int(connection.scalar(newest if end == length else last) or 0)
            bounds = {events: events.c.version <= version, operations: operations.c.seq < end}
            bounds |= {snapshots: snapshots.c.seq <= end, vectors: sa.true()}
            for table, bound in bounds.items():
                # A response is its own conversation's.
                other = {"conversation": sa.literal(about.id), "response": sa.null()}
                columns = [other.get(column.name, column) for column in table.c]
                rows = sa.select(*columns).where(table.c.conversation == conversation, bound)
                connection.execute(
                    table.insert().from_select([column.name for column in table.c], rows)
                )
            made = sa.select(events.c.checkpoint).where(events.c.conversation == about.id)
            checkpoint = connection.scalar(made.order_by(events.c.version.desc()).limit(1))
            if checkpoint is not None:
                # One of a part of what was imported holds imported lines, and not the one that says so.
                later = sa.select(events.c.body).where(events.c.conversation == conversation)
                later = later.where(events.c.kind == "fork", events.c.version > version)
                imported = not all(connection.scalars(later))
                body = {} if imported else {"conversation": conversation, "at": end}
                append_events(
                    connection, about.id, [Event("fork", body, version=version + 1)], checkpoint
                )
            return about

        return self._made(owner, request, work)

    def restore(
        self,
        owner: str,
        metadata: Mapping[str, str],
        past: Sequence[Event],
        written: Sequence[Operation],
        made: Sequence[tuple[int, str, str]],
        request: RequestKey | None = None,
    ) -> About:
        """A new conversation with this past; `made` has the version, checkpoint and embedder of each operation."""

        def work(connection: sa.Connection) -> About:
            about = new_conversation(connection, owner, metadata)
            last = Event(
                "fork", {}, version=len(past) + 1, checkpoint=past[-1].checkpoint if past else ""
            )
            if past:
                append_events(connection, about.id, [*past, last], "")
            if written:
                connection.execute(operations.insert(), operation_rows(about.id, 0, written, made))
            return about

        return self._made(owner, request, work)

    def response(self, response: str, owner: str) -> tuple[str, Event, Event | None]:
        """The conversation, question and answer of a response; None where it was not answered.

        Raises:
            NotFoundError: `owner` has none of this id.
        """
        query = sa.select(events).join(conversations, conversations.c.id == events.c.conversation)
        query = query.where(conversations.c.owner == owner, events.c.response == response).order_by(
            events.c.version
        )
        rows = self._rows(query)
        if not rows:
            raise NotFoundError(f"there is no response {response!r}.")
        return (
            rows[0]["conversation"],
            event_of(rows[0]),
            event_of(rows[1]) if len(rows) > 1 else None,
        )

    def operations(
        self, conversation: str, first: int, limit: int | None = None, *, version: int | None = None
    ) -> list[Mapping[str, Any]]:
        """Its operations from number `first` on, or those of one event, as JSON values with all that is kept."""
        query = sa.select(operations).where(
            operations.c.conversation == conversation, operations.c.seq >= first
        )
        query = query if version is None else query.where(operations.c.version == version)
        return [
            {
                str(name): value
                for name, value in row.items()
                if value is not None and name != "conversation"
            }
            for row in self._rows(query.order_by(operations.c.seq).limit(limit))
        ]

    def _rows(self, query: sa.Select[Any]) -> Sequence[sa.RowMapping]:
        with self.engine.begin() as connection:
            return connection.execute(query).mappings().all()

    def length(self, conversation: str) -> int:
        """How many operations it has."""
        with self.engine.begin() as connection:
            return log_length(connection, conversation)

    def memory_at(self, conversation: str, seq: int | None = None) -> Contents:
        """Its memory as `seq` operations had left it (unset: all); replayed, without an embedding."""
        with self.engine.begin() as connection:
            seq = log_length(connection, conversation) if seq is None else seq
            start = newest_snapshot(connection, conversation, seq)
            first = 0 if start is None else start.contents.position
            return replay(operations_between(connection, conversation, first, seq), start)
