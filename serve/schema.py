"""The database: its tables and their rows, and engines for SQLite and PostgreSQL."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from atommem.errors import AtomMemError, ConfigError
from atommem.memory.store import TextVectors

VERSION = 3  # version of the tables; a database of another version is refused

metadata = sa.MetaData()
_Json = sa.JSON(none_as_null=True)


def _conversation_id(**options: Any) -> sa.Column[str]:
    return sa.Column("conversation", sa.String(64), sa.ForeignKey("conversations.id"), **options)


schema_version = sa.Table(
    "schema_version",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
)

conversations = sa.Table(
    "conversations",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False, index=True),
    sa.Column("created_at", sa.Integer, nullable=False),
    sa.Column("metadata", _Json, nullable=False),
)
"""``metadata`` is the client's, as in OpenAI's API; its ``goal`` is shown while reading."""

events = sa.Table(
    "events",
    metadata,
    _conversation_id(primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("created_at", sa.Integer, nullable=False),
    sa.Column("step", sa.Integer),
    sa.Column("parent", sa.Integer),
    sa.Column("chunks", sa.Integer),
    sa.Column("tokens", sa.Integer),
    sa.Column("response", sa.String(64), index=True),
    sa.Column("item", sa.String(80), index=True),
    sa.Column("checkpoint", sa.String(64), nullable=False),
    sa.Column("embedder", sa.String(256), nullable=False),
    sa.Column("body", _Json, nullable=False),
    sa.Column("operations", _Json, nullable=False),
    sa.UniqueConstraint("conversation", "step"),
)
"""The key (conversation, version) orders a conversation: of two gateways that write the same
version, the second fails and retries on top of the first. Kinds: ``item`` (a text to read in
``chunks`` steps), ``ask`` (whose text is read in ``chunks`` steps after its answer), ``step`` (of
the item or question ``parent``; ``tokens`` were sampled), ``answer`` and ``stopped`` (of
``parent``), ``edit`` (by the owner), ``deleted`` (``parent``). Texts, questions and answers have an
``item`` id. ``operations`` are those of the memory's log that the event wrote."""

vectors = sa.Table(
    "vectors",
    metadata,
    _conversation_id(primary_key=True),
    sa.Column("embedder", sa.String(256), primary_key=True),
    sa.Column("digest", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("row", sa.LargeBinary, nullable=False),
)
"""Cache of float32 embeddings, by digest of the text."""

requests = sa.Table(
    "requests",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("digest", sa.String(64), nullable=False),
    _conversation_id(nullable=False, index=True),
    sa.Column("version", sa.Integer),
    sa.Column("failed", sa.Boolean, nullable=False, default=False),
)
"""Results of requests, committed with what the request wrote: the conversation it created, or the
first event (``version``) it appended. A request without an ``Idempotency-Key`` is one with an equal
request that `failed` before."""


class NotFoundError(AtomMemError):
    """The object does not exist, or belongs to another owner."""


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
    item: str | None = None
    operations: Sequence[Mapping[str, Any]] = ()
    version: int = 0
    created_at: int = 0
    checkpoint: str = ""
    embedder: str = ""

    @property
    def source(self) -> str:
        """The name that entries have as the source of text from this item."""
        return str(self.body.get("item", {}).get("name") or self.item)


LISTED = "conv_"
ITEMS = ("item", "ask", "answer")  # the events that are listed
PARTS = ("conversation", "branch", "items")  # of a request that commits more than once
Unread = dict[int, tuple[int, int]]  # (chunks read, chunks) of an item with some left, by version
STATE = tuple(column for column in events.c if column.name not in ("conversation", "body"))
"""What `LogState` follows."""


@dataclass
class LogState:
    """What a conversation's log says of its progress."""

    version: int = 0  # of the newest event
    embedder: str | None = None
    steps: int = 0  # as in `SessionState`
    sampled: int = 0
    unread: Unread = field(default_factory=dict)
    asked: Unread = field(default_factory=dict)  # a question, unread until it has its answer

    def advance(self, event: Any) -> None:
        """Follow an event, or a row of its columns but the body."""
        self.version, self.embedder = event.version, event.embedder
        if event.kind == "step":
            self.steps = event.step + 1
            self.sampled += event.tokens
        if event.kind in ("stopped", "deleted"):
            self.asked.pop(event.parent, None)
        elif event.kind in ITEMS:
            self.unread |= self.asked
            self.asked.clear()
            if event.chunks:
                texts = self.asked if event.kind == "ask" else self.unread
                texts[event.version] = 0, event.chunks
        if event.kind in ("step", "stopped", "deleted") and event.parent in self.unread:
            read, chunks = self.unread[event.parent]
            if event.kind == "step" and read + 1 < chunks:
                self.unread[event.parent] = read + 1, chunks
            else:  # its last step, or it was stopped or deleted
                del self.unread[event.parent]


@dataclass(frozen=True)
class RequestKey:
    """Identity of a request: SHA-256 of owner and ``Idempotency-Key``, and of the request.

    Without that header (`derived`) both are of the request. One that `renews` is written anew,
    whatever an equal request wrote before.
    """

    key: str
    digest: str
    derived: bool = False
    renews: bool = False

    def derive(self, name: str) -> RequestKey:
        return replace(self, key=sha256(self.key.encode(), name.encode()))


def sha256(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def question_id(response: str) -> str:
    return f"msg_q{response.removeprefix('resp_')}"


def answer_id(response: str) -> str:
    return f"msg_a{response.removeprefix('resp_')}"


def state_of(rows: Sequence[sa.Row[Any]]) -> LogState:
    state = LogState()
    for row in rows:
        state.advance(row)
    return state


def events_of(conversation: str, *columns: Any) -> sa.Select[Any]:
    query = sa.select(*(columns or (events,))).order_by(events.c.version)
    return query.where(events.c.conversation == conversation)


def insert_conversation(
    connection: sa.Connection, owner: str, metadata: Mapping[str, str], prefix: str = LISTED
) -> ConversationInfo:
    now = int(time.time())
    info = ConversationInfo(f"{prefix}{now:08x}{secrets.token_hex(12)}", owner, now, dict(metadata))
    connection.execute(conversations.insert().values(vars(info)))
    return info


def find_conversation(
    connection: sa.Connection, conversation: str, owner: str, *, lock: bool = False
) -> ConversationInfo:
    columns = conversations.c
    query = sa.select(conversations).where(columns.id == conversation, columns.owner == owner)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise NotFoundError(f"there is no conversation {conversation!r}.")
    return ConversationInfo(*tuple(row))


def conversations_of(owner: str, meta: Mapping[str, str | None], is_sqlite: bool) -> sa.Select[Any]:
    """Select the conversations with the metadata `meta` (None: without it), newest first."""
    query = sa.select(conversations).where(conversations.c.owner == owner)
    for name, value in meta.items():
        # SQLite compares names as the JSON spells them.
        spelt = json.dumps(name)[1:-1] if is_sqlite else name
        found = conversations.c.metadata[spelt].as_string()
        query = query.where(found.is_(None) if value is None else found == value)
    return query.order_by(conversations.c.id.desc())  # an id begins with its time


def failure_of(key: str) -> sa.Select[Any]:
    """Select whether a request `failed`, and when what it wrote was `made`."""
    columns, found = requests.c, events.c
    made = sa.func.coalesce(found.created_at, conversations.c.created_at).label("made")
    query = sa.select(columns.failed, made).join_from(requests, conversations)
    same = (found.conversation == columns.conversation) & (found.version == columns.version)
    return query.outerjoin(events, same).where(columns.key == key)


def record_request(
    connection: sa.Connection, request: RequestKey | None, name: str, version: int | None = None
) -> None:
    if request is not None:
        values = {"conversation": name, "version": version, "failed": False}
        identity = {"key": request.key, "digest": request.digest}
        row = insert_of(connection, requests).values(**identity, **values)
        if request.renews:
            row = row.on_conflict_do_update(index_elements=[requests.c.key], set_=values)
        connection.execute(row)


def insert_of(connection: sa.Connection, table: sa.Table) -> Any:
    """Return an insert that can say what to do on a conflict."""
    return (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table)


def find_request(connection: sa.Connection, request: RequestKey | None) -> sa.Row[Any] | None:
    if request is None or request.renews:
        return None
    row = connection.execute(sa.select(requests).where(requests.c.key == request.key)).one_or_none()
    if row is not None and row.digest != request.digest:
        raise KeyReusedError(
            "this Idempotency-Key was used for another request. Use a new key for each request."
        )
    return row


def event_of(row: sa.Row[Any]) -> Event:
    return Event(**{key: value for key, value in row._mapping.items() if key != "conversation"})


def vector_rows(conversation: str, cached: TextVectors) -> list[dict[str, Any]]:
    digests = cached.digests.view(np.int64).tolist()
    key = {"conversation": conversation, "embedder": cached.embedder}
    rows = zip(digests, cached.rows.astype(np.float32), strict=True)
    return [{**key, "digest": digest, "row": row.tobytes()} for digest, row in rows]


def text_vectors(embedder: str, rows: Sequence[Any]) -> TextVectors:
    digests = np.array([row.digest for row in rows], dtype=np.int64).view(np.uint64)
    found = np.stack([np.frombuffer(row.row, dtype=np.float32) for row in rows])
    return TextVectors(embedder, digests, found)


def open_database(url: str) -> sa.Engine:
    """Open ``sqlite:///FILE`` or ``postgresql://USER@HOST/NAME`` (psycopg 3); make its tables.

    Raises ConfigError if it is unreachable or of another version.
    """
    try:
        address = sa.make_url(url)
        if address.drivername == "sqlite":
            if not address.database or ":memory:" in address.database:
                raise ConfigError(f"db={url}: keeps conversations in a file. Give sqlite:///FILE.")
            engine = _sqlite(address)
        else:
            if not address.drivername.startswith("postgres"):
                raise sa.exc.ArgumentError(f"{address.drivername} is not supported")
            address = address.set(drivername="postgresql+psycopg")
            # Prepared statements fail behind pgbouncer, whose connections change.
            options: dict[str, Any] = {"connect_args": {"prepare_threshold": None}}
            options |= {"pool_size": 8, "max_overflow": 8, "pool_pre_ping": True}
            engine = sa.create_engine(address, **options)
        found = _create_tables(engine)
    except (sa.exc.SQLAlchemyError, ModuleNotFoundError, OSError) as error:
        reason = getattr(error, "orig", None) or error
        raise ConfigError(
            f"db={url}: the database cannot be opened ({reason}). Give sqlite:///FILE or "
            "postgresql://USER@HOST/NAME."
        ) from error
    if found != VERSION:
        problem = f"its tables have version {found}, AtomMem needs {VERSION}. Give a new database."
        raise ConfigError(f"db={url}: {problem}")
    return engine


def _sqlite(address: sa.URL) -> sa.Engine:
    """Make an engine with a write-ahead log that syncs every commit to disk."""
    Path(address.database or ".").parent.mkdir(parents=True, exist_ok=True)
    options = {"timeout": 60, "check_same_thread": False}
    engine = sa.create_engine(address, connect_args=options, pool_size=64)

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # SQLAlchemy begins transactions, see below
        pragmas = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "secure_delete=ON")
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # A transaction that reads first and then writes is refused the lock, and does not wait.
        # What only reads is one statement.
        if connection.get_execution_options().get("writes", False):
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _create_tables(engine: sa.Engine) -> int | None:
    """Create the tables if there are none; return their version (None: it was not recorded)."""
    with engine.execution_options(writes=True).begin() as connection:
        if connection.dialect.name == "postgresql":  # gateways that start at the same time
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7061)")
        tables = sa.inspect(connection).get_table_names()
        if schema_version.name in tables:
            return connection.scalar(sa.select(schema_version.c.version))
        if conversations.name in tables:
            return None
        metadata.create_all(connection)
        connection.execute(schema_version.insert().values(version=VERSION))
        return VERSION
