"""The tables of the conversations' log, and the engines that reach them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa

from atommem.errors import ConfigError

metadata = sa.MetaData()
_Text = sa.Text()
_Json = sa.JSON(none_as_null=True)


def _of_conversation(**options: Any) -> sa.Column[str]:
    return sa.Column("conversation", sa.String(64), sa.ForeignKey("conversations.id"), **options)


conversations = sa.Table(
    "conversations",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False, index=True),
    sa.Column("created_at", sa.Integer, nullable=False),
    sa.Column("metadata", _Json, nullable=False),
)
"""``metadata`` is the owner's, as of OpenAI's conversations; ``goal`` in it is shown while reading."""

events = sa.Table(
    "events",
    metadata,
    _of_conversation(primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("created_at", sa.Integer, nullable=False),
    sa.Column("step", sa.Integer),
    sa.Column("of", sa.Integer),
    sa.Column("chunks", sa.Integer),
    sa.Column("tokens", sa.Integer),
    sa.Column("response", sa.String(64), index=True),
    sa.Column("checkpoint", sa.String(64), nullable=False),
    sa.Column("body", _Json, nullable=False),
    sa.UniqueConstraint("conversation", "step"),
)
"""One line for each commit. Its key is what orders a conversation: of two writers of one version the later one loses,
whatever it writes, and does it again on top of the other's. Kinds: ``item`` (to be read in ``chunks`` steps), ``ask``,
``step`` (of the item or question ``of``; ``tokens`` were sampled), ``answer`` and ``stopped`` (of it, too), ``edit``
(its owner's), ``deleted`` (an item), ``moved`` (to a checkpoint), ``fork``, ``feedback``."""

operations = sa.Table(
    "operations",
    metadata,
    _of_conversation(primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("outcome", sa.String(16)),
    sa.Column("entry_id", sa.Integer),
    sa.Column("handle", sa.Integer),
    sa.Column("before", _Text),
    sa.Column("after", _Text),
    sa.Column("actor", sa.String(256)),
    sa.Column("reason", _Text),
    sa.Column("score", sa.Double),
    sa.Column("scores", _Json),
    sa.Column("source", _Json),
    sa.Column("rest", _Json),
    sa.Column("checkpoint", sa.String(64), nullable=False),
    sa.Column("embedder", sa.String(256), nullable=False),
)
"""The operation log (`atommem.memory.log.Operation`), what is as its default left NULL. Fields that have
no column stand in ``rest``."""

vectors = sa.Table(
    "vectors",
    metadata,
    _of_conversation(primary_key=True),
    sa.Column("embedder", sa.String(256), primary_key=True),
    sa.Column("digest", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("row", sa.LargeBinary, nullable=False),
)
"""Vectors of texts, float16, by what the texts say (`atommem.memory.store.TextVectors`): a cache."""

snapshots = sa.Table(
    "snapshots",
    metadata,
    _of_conversation(primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("body", _Json, nullable=False),
)
"""A memory as ``seq`` operations had left it: also follows from the log, and spares replaying it from the start."""

requests = sa.Table(
    "requests",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("digest", sa.String(64), nullable=False),
    _of_conversation(nullable=False, index=True),
    sa.Column("version", sa.Integer),
)
"""What a request with an ``Idempotency-Key`` wrote, in the transaction that wrote it: the conversation that it made, or
the first event (``version``) that it appended to one."""

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("sha256", sa.String(64), nullable=False, unique=True),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("created_at", sa.Integer, nullable=False),
    sa.Column("revoked_at", sa.Integer),
    sa.Column("requests_per_minute", sa.Integer),
    sa.Column("max_body_bytes", sa.Integer),
)

MIGRATIONS = Path(__file__).with_name("migrations")


def open_database(url: str, *, pool_size: int = 8, make: bool = True) -> sa.Engine:
    """The database at `url`, brought to the newest schema.

    Args:
        url: ``sqlite:///FILE``, or ``postgresql://...``, which is spoken to by psycopg 3.
        pool_size: Connections that are kept (PostgreSQL).
        make: Make the file where there is none.

    Raises:
        ConfigError: The URL is none, its driver is not installed, or the database is not there.
    """
    if url.startswith(("postgresql://", "postgres://")):
        url = "postgresql+psycopg://" + url.partition("://")[2]
    try:
        address = sa.make_url(url)
        if address.get_backend_name() == "sqlite":
            if not make and not Path(address.database or "").is_file():
                raise ConfigError(
                    f"there is no database {address.database}: give that of `atommem serve --db`."
                )
            engine = _sqlite(address)
        else:
            engine = sa.create_engine(
                address, pool_size=pool_size, max_overflow=pool_size, pool_pre_ping=True
            )
    except (sa.exc.ArgumentError, ModuleNotFoundError, OSError) as error:
        raise ConfigError(
            f"the database cannot be opened ({type(error).__name__}: {error}): give sqlite:///FILE, or "
            "postgresql://USER@HOST/NAME with psycopg installed (pip install 'atommem[serve]')."
        ) from error
    try:
        _upgrade(engine)
    except sa.exc.DatabaseError as error:
        raise ConfigError(
            f"the database {address.render_as_string()} is out of reach or no database: {error.orig}. Give another."
        ) from error
    return engine


def _sqlite(address: sa.URL) -> sa.Engine:
    """WAL, one writer at a time, every commit on disk when it returns: what was acknowledged survives power loss."""
    if address.database and address.database != ":memory:":
        Path(address.database).parent.mkdir(parents=True, exist_ok=True)
    engine = sa.create_engine(
        address, connect_args={"timeout": 60, "check_same_thread": False}, pool_size=64
    )

    @sa.event.listens_for(engine, "connect")
    def _settings(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # the driver would begin transactions by itself, too late
        for setting in (
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            "secure_delete=ON",
        ):
            connection.execute(f"PRAGMA {setting}")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # A writer takes its lock at once: one that had read before would be refused it instead of waiting.
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _upgrade(engine: sa.Engine) -> None:
    """Make a new database's tables as they stand here; what an older one lacks is added by `MIGRATIONS`."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.execution_options(writes=True).begin() as connection:
        config.attributes["connection"] = connection
        if connection.dialect.name == "postgresql":  # two gateways that start together
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7061)")
        if sa.inspect(connection).has_table(conversations.name):
            command.upgrade(config, "head")
        else:
            metadata.create_all(connection)
            command.stamp(config, "head")
