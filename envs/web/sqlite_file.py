"""An SQLite file that several threads and processes share."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atommem.errors import ConfigError, DataError


class SqliteFile:
    """An SQLite file; all methods raise `DataError` if it is damaged or of another kind.

    `kind` is its role in error messages. `schema` creates missing tables; without it, the file is
    opened for reading only.
    """

    def __init__(self, path: Path, kind: str, schema: str | None) -> None:
        self._path, self._kind = path, kind
        self._lock = threading.RLock()
        uri = f"{path.absolute().as_uri()}?mode={'ro' if schema is None else 'rwc'}"
        options: dict[str, Any] = {"timeout": 60.0, "check_same_thread": False, "uri": True}
        try:
            self._file = sqlite3.connect(uri, isolation_level=None, **options)
        except sqlite3.OperationalError as error:
            raise ConfigError(f"{path}: the {kind} cannot be opened ({error}).") from error
        self.rows("PRAGMA synchronous = NORMAL")
        for statement in (schema or "SELECT * FROM sqlite_master").split(";"):
            self.rows(statement)

    def rows(self, statement: str, *values: Any) -> list[Any]:
        with self._lock, self._named_errors():
            return self._file.execute(statement, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Apply everything inside or nothing, with no write of another process in between."""
        with self._lock, self._named_errors(), self._file:
            self.rows("BEGIN IMMEDIATE")
            yield

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise DataError(
                f"{self._path}: not a {self._kind} that can be used ({error}). Free space on its "
                "disk; if it is damaged, build it anew."
            ) from error

    def close(self) -> None:
        """Close the file; later use raises `DataError`."""
        with self._lock:
            self._file.close()
