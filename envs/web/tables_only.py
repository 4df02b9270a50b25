"""SQLite files that a stranger may have made."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from atommem.errors import DataError


def require_tables_only(database: sqlite3.Connection, path: Path, kind: str) -> None:
    """Nothing in the file acts by itself: a view may make a query run for ever, a trigger write what nobody asked for.

    Args:
        database: The open file.
        path: Where it is, for the error.
        kind: What it should be, for the error (``cassette``).

    Raises:
        DataError: It holds a trigger or a view.
        sqlite3.DatabaseError: It is no SQLite file.
    """
    if database.execute("SELECT name FROM sqlite_master WHERE type IN ('trigger', 'view')").fetchone():
        raise DataError(f"{path} is no {kind}: it holds a trigger or a view.")
