"""An SQLite file that several processes share, and that a stranger may have made."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atommem.errors import ConfigError, DataError

_WAIT_SECONDS = 60.0
"""For the lock of the file."""


class SqliteFile:
    """The file, for one thread at a time. A process that is killed leaves it whole (write-ahead log).

    Args:
        path: Where it is.
        kind: What it is, for errors (``cassette``).
        tables: SQL that makes what is not there yet; None if the file is only read.
        remedy: What to do about a damaged one, for errors.

    Raises (all of it):
        ConfigError: It cannot be opened.
        DataError: It is something else, damaged, or acts by itself: a view may make a query run for ever, a trigger
            write what nobody asked for.
    """

    def __init__(self, path: Path, kind: str, tables: str | None, remedy: str = "") -> None:
        self._name, self._remedy = f"the {kind} {path}", remedy
        self._lock = threading.RLock()
        mode = _reading(path) if tables is None else "rwc"
        try:
            uri = f"{path.absolute().as_uri()}?mode={mode}"
            self._file = sqlite3.connect(
                uri, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False, uri=True
            )
            if self._file.execute(
                "SELECT name FROM sqlite_master WHERE type IN ('trigger', 'view')"
            ).fetchone():
                raise DataError(f"{path} is no {kind}: it holds a trigger or a view.")
            if tables is not None:
                # With NORMAL, a power failure may take what was written last; a killed process takes none.
                self._file.executescript(
                    "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;" + tables
                )
        except sqlite3.OperationalError as error:
            raise ConfigError(f"{self._name} cannot be opened: {error}.") from error
        except sqlite3.DatabaseError as error:
            raise DataError(f"{path} is no {kind}: {error}.{remedy}") from error

    def rows(self, statement: str, *values: Any) -> list[Any]:
        """What a statement gives."""
        return list(self.each(statement, *values))

    def each(self, statement: str, *values: Any) -> Iterator[Any]:
        """`rows`, one at a time: they may be gigabytes."""
        try:
            with self._lock:
                yield from self._file.execute(statement, values)
        except sqlite3.DatabaseError as error:
            raise DataError(f"{self._name} cannot be used: {error}.{self._remedy}") from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is done within it or nothing, and no other process's in between."""
        with self._lock:
            self.rows("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self.rows("ROLLBACK")
                raise
            self.rows("COMMIT")

    def close(self) -> None:
        """Close it; a thread that still uses it (SQLite would end the process) gets a `DataError`."""
        with self._lock:
            self._file.close()


def _reading(path: Path) -> str:
    """How to open a file to read it: where its folder cannot be written, SQLite must not look for other processes."""
    log = path.with_name(path.name + "-wal")
    whole = not os.access(path.parent, os.W_OK) and not (log.exists() and log.stat().st_size)
    return "ro&immutable=1" if whole else "ro"
