"""Recorded tool calls: one SQLite file that answers again what has been asked before."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec

from atommem.envs.web.tools import Tool, ToolResult, ToolSource
from atommem.errors import BudgetSpentError, ConfigError, DataError, OutageError


class SqliteFile:
    """An SQLite file; all methods raise `DataError` if it is damaged or of another kind.

    `kind` is its role in messages. `schema` creates missing tables; without it, it is read-only.
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


_SCHEMA = """
CREATE TABLE IF NOT EXISTS calls (
    tool TEXT, backend TEXT, arguments TEXT, time REAL, result BLOB,
    PRIMARY KEY (tool, backend, arguments)
);
CREATE TABLE IF NOT EXISTS made (id INTEGER PRIMARY KEY, calls INTEGER);
INSERT OR IGNORE INTO made VALUES (0, 0)
"""
msgspec.json.Decoder(ToolResult)  # in one thread, as in atommem.memory.log


class Recording:
    """A file of calls with their results, and of the number of calls made.

    A call is a tool, what answers it (the same arguments have one answer for each backend), and
    arguments. The file is created unless `read_only`.
    """

    def __init__(self, path: str | Path, read_only: bool = False) -> None:
        self.path = Path(path)
        self._file = SqliteFile(self.path, "recording", None if read_only else _SCHEMA)

    @classmethod
    def of(cls, config: Any) -> Recording:
        return cls(config.recording, config.recording_mode != "record")

    def find(self, tool: str, backend: str, arguments: Mapping[str, Any]) -> ToolResult | None:
        query = "SELECT result FROM calls WHERE tool = ? AND backend = ? AND arguments = ?"
        rows = self._file.rows(query, tool, backend, _as_json(arguments))
        return self._decode(rows[0][0]) if rows else None

    def add(self, tool: str, backend: str, arguments: Mapping[str, Any], made: ToolResult) -> None:
        packed = zlib.compress(json.dumps(asdict(made)).encode())
        values = (tool, backend, _as_json(arguments), time.time(), packed)
        self._file.rows("INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, ?)", *values)

    def results(self) -> Iterator[tuple[dict[str, Any], ToolResult]]:
        """Yield arguments and result of all calls in the order of recording."""
        order = "ORDER BY time, rowid"
        for arguments, packed in self._file.rows(f"SELECT arguments, result FROM calls {order}"):
            yield json.loads(arguments), self._decode(packed)

    def charge(self, budget: int | None) -> None:
        """Count a call before it is made; raises `BudgetSpentError` beyond the budget."""
        limited = "calls < coalesce(?, calls + 1)"
        change = f"UPDATE made SET calls = calls + 1 WHERE {limited} RETURNING calls"
        if not self._file.rows(change, budget):
            raise BudgetSpentError(f"call_budget={budget} is spent ({self.path}). Raise it.")

    def close(self) -> None:
        self._file.close()

    def _decode(self, packed: Any) -> ToolResult:
        try:
            return msgspec.convert(json.loads(zlib.decompress(packed)), ToolResult)
        except (zlib.error, ValueError) as error:
            raise DataError(
                f"{self.path}: a recorded result is damaged ({error}). Record it again."
            ) from error


class RecordedSource(ToolSource):
    """A tool source whose calls are answered from a recording, by ``recording_mode``.

    - ``record``: unrecorded calls are made and recorded. Equal calls of one process are made once.
    - ``replay``: no call is made; an unrecorded one is an outage, so that no score depends on it.
    - ``frozen``: no call is made; an unrecorded page or result does not exist.

    A call raises `BudgetSpentError` if it would have to be made and ``call_budget`` is spent.
    """

    def __init__(self, source: ToolSource) -> None:
        super().__init__(source.config)
        self.backend = source.backend
        self._source = source
        self._recording = Recording.of(source.config)
        self._pending: dict[Any, asyncio.Task[ToolResult]] = {}
        self.tools = [replace(tool, run=self._recorded(tool)) for tool in source.tools]

    async def close(self) -> None:
        for task in list(self._pending.values()):
            task.cancel()
        await self._source.close()
        self._recording.close()

    def _recorded(self, tool: Tool) -> Any:
        async def run(arguments: Mapping[str, Any], task: Any) -> ToolResult:
            key = (asyncio.get_running_loop(), tool.name, _as_json(arguments))
            if key not in self._pending:
                made = self._pending[key] = asyncio.create_task(self._answer(tool, arguments, task))
                made.add_done_callback(lambda _: self._pending.pop(key))
            return await asyncio.shield(self._pending[key])  # others wait on if one is cancelled

        return run

    async def _answer(self, tool: Tool, arguments: Mapping[str, Any], task: Any) -> ToolResult:
        config, call = self.config, (tool.name, str(self.backend), arguments)
        found = await asyncio.to_thread(self._recording.find, *call)
        if found is not None:
            return found
        if config.recording_mode == "frozen":
            return ToolResult("There is no such page or result in the recorded web.", is_error=True)
        if config.recording_mode == "replay":
            raise OutageError(
                f"{config.recording} does not contain {tool.name} {_as_json(arguments)}. Record it."
            )
        await asyncio.to_thread(self._recording.charge, config.call_budget)
        result = await tool.run(arguments, task)
        await asyncio.to_thread(self._recording.add, *call, result)
        return result


def _as_json(arguments: Mapping[str, Any]) -> str:
    return json.dumps(dict(arguments), sort_keys=True)
