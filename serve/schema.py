"""The database: its tables and their rows, and engines for SQLite and PostgreSQL."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from atommem.errors import AtomMemError, ConfigError

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
``parent``), ``edit`` (by the owner), ``deleted`` (``parent``), ``fork``. Texts, questions and
answers have an ``item`` id. ``operations`` are those of the memory's log that the event wrote."""

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

    def has_source(self, name: str) -> bool:
        """Whether `name` is its source, or the whole whose part it is."""
        return self.source == name or self.source.startswith(f"{name}, ")


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
        raise ConfigError(
            f"db={url}: its tables have version {found}, this AtomMem needs {VERSION}. Give a new "
            "database."
        )
    return engine


def _sqlite(address: sa.URL) -> sa.Engine:
    """Make an engine with a write-ahead log that syncs every commit to disk."""
    Path(address.database or ".").parent.mkdir(parents=True, exist_ok=True)
    engine = sa.create_engine(
        address, connect_args={"timeout": 60, "check_same_thread": False}, pool_size=64
    )

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # SQLAlchemy begins transactions, see below
        pragmas = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "secure_delete=ON")
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # A transaction that reads first and then writes is refused the lock, and does not wait.
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _create_tables(engine: sa.Engine) -> int | None:
    """Create the tables if there are none; return their version (None: it was not recorded)."""
    with engine.execution_options(writes=True).begin() as connection:
        if connection.dialect.name == "postgresql":  # gateways that start at the same time
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7061)")
        tables = sa.inspect(connection).get_table_names()
        if not {conversations.name, schema_version.name} & {*tables}:
            metadata.create_all(connection)
            connection.execute(schema_version.insert().values(version=VERSION))
        elif schema_version.name not in tables:
            return None
        return connection.scalar(sa.select(schema_version.c.version))
