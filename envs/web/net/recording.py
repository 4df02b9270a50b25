"""Recorded tool calls: one SQLite file that answers again what has been asked before."""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from atommem.envs.web.net.hosts import HostRules
from atommem.envs.web.sqlite_file import SqliteFile
from atommem.envs.web.tools import Link, Run, Tool, ToolResult, ToolSource
from atommem.errors import BudgetSpentError, ConfigError, DataError, OutageError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS calls (
    tool TEXT, backend TEXT, arguments TEXT, time REAL, result BLOB,
    PRIMARY KEY (tool, backend, arguments)
);
CREATE TABLE IF NOT EXISTS spent (tool TEXT PRIMARY KEY, calls INTEGER, cost REAL)
"""
_MAX_RESULT_BYTES = 64_000_000


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call of a tool.

    Attributes:
        tool: Name of the tool.
        backend: What answers; the same arguments have one answer for each backend.
        arguments: JSON with sorted keys.
    """

    tool: str
    backend: str
    arguments: str

    @classmethod
    def of(cls, tool: str, backend: str, arguments: Mapping[str, Any]) -> RecordedCall:
        """Return the call with these arguments."""
        return cls(tool, backend, json.dumps(dict(arguments), sort_keys=True))


class Recording:
    """A file of calls with their results, and of what they have cost.

    Args:
        path: The file; created unless `read_only`.
        read_only: Forbid changes.

    Raises:
        ConfigError: The file is missing, or cannot be created.
        DataError: The file is not a recording, or damaged.
    """

    def __init__(self, path: str | Path, read_only: bool = False) -> None:
        self.path = Path(path)
        if read_only and not self.path.is_file():
            raise ConfigError(
                f"{path}: no such recording. Record with recording_mode=record first."
            )
        self._file = SqliteFile(self.path, "recording", None if read_only else _SCHEMA)
        self._file.rows("SELECT result FROM calls LIMIT 1")

    def find(self, call: RecordedCall) -> ToolResult | None:
        """Return the recorded result of a call."""
        where = "tool = ? AND backend = ? AND arguments = ?"
        rows = self._file.rows(
            f"SELECT result FROM calls WHERE {where}", call.tool, call.backend, call.arguments
        )
        return self._decode(rows[0][0]) if rows else None

    def add(self, call: RecordedCall, result: ToolResult) -> None:
        """Record the result of a call."""
        packed = zlib.compress(json.dumps(asdict(result)).encode())
        values = (call.tool, call.backend, call.arguments, time.time(), packed)
        self._file.rows("INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, ?)", *values)

    def results(self) -> Iterator[tuple[RecordedCall, ToolResult]]:
        """Yield all calls with their results in the order of recording."""
        columns = "tool, backend, arguments, result"
        for *call, packed in self._file.each(f"SELECT {columns} FROM calls ORDER BY time, rowid"):
            yield RecordedCall(*call), self._decode(packed)

    def counts(self) -> list[tuple[str, str, int]]:
        """Return how many calls are recorded for each tool and backend."""
        return self._file.rows("SELECT tool, backend, COUNT(*) FROM calls GROUP BY 1, 2 ORDER BY 1")

    def spent(self) -> dict[str, tuple[int, float]]:
        """Return number and cost of the calls made, by tool."""
        rows = self._file.rows("SELECT tool, calls, cost FROM spent ORDER BY tool")
        return {tool: (calls, cost) for tool, calls, cost in rows}

    def charge(
        self, tool: str, price: float, max_calls: int | None, max_cost: float | None
    ) -> None:
        """Count a call before it is made, so that the budget is never exceeded.

        Raises:
            BudgetSpentError: The budget does not allow another call.
        """
        with self._file.transaction():
            made = self.spent().values()
            calls, cost = sum(count for count, _ in made), sum(cost for _, cost in made)
            if max_calls is not None and calls >= max_calls:
                raise BudgetSpentError(
                    f"call_budget={max_calls} is spent ({calls} calls, {self.path}). Raise it."
                )
            if max_cost is not None and cost + price > max_cost + price / 1000:  # rounding
                raise BudgetSpentError(
                    f"cost_budget={max_cost:g} is spent ({cost:g}, {self.path}). Raise it."
                )
            added = (
                "ON CONFLICT (tool) DO UPDATE SET calls = calls + 1, cost = cost + excluded.cost"
            )
            self._file.rows(f"INSERT INTO spent VALUES (?, 1, ?) {added}", tool, price)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _decode(self, packed: Any) -> ToolResult:
        try:
            values = json.loads(zlib.decompressobj().decompress(packed, _MAX_RESULT_BYTES))
            links = tuple(Link(**link) for link in values.pop("links"))
            return ToolResult(**values, links=links)
        except (zlib.error, ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(
                f"{self.path}: a recorded result is damaged ({error}). Record it again."
            ) from error


class Recorder:
    """Answers calls from a recording, by ``recording_mode``.

    - ``record``: unrecorded calls are made and recorded. Equal calls of one process are made once.
    - ``replay``: no call is made; an unrecorded one is an outage, so that no score depends on it.
    - ``frozen``: no call is made; an unrecorded page or result does not exist.

    Args:
        config: A `WebConfig` that names a recording.
    """

    def __init__(self, config: Any) -> None:
        self._config = config
        self._prices = {
            tool: float(price) for tool, _, price in (p.partition("=") for p in config.call_prices)
        }
        self._recording = Recording(config.recording, config.recording_mode != "record")
        self._pending: dict[Any, asyncio.Task[ToolResult]] = {}

    async def call(
        self, call: RecordedCall, make: Callable[[], Awaitable[ToolResult]]
    ) -> ToolResult:
        """Return the result of `call`, recorded or from `make`.

        Raises:
            OutageError: The call failed, or is not recorded and may not be made.
            BudgetSpentError: The call would have to be made, and the budget is spent.
        """
        key = (asyncio.get_running_loop(), call)
        task = self._pending.get(key)
        if task is None:
            task = self._pending[key] = asyncio.create_task(self._find_or_make(call, make))
            task.add_done_callback(lambda done: self._finish(key, done))
        return await asyncio.shield(task)  # the others still wait when one is cancelled

    def close(self) -> None:
        """Cancel pending calls and close the file; sources share a recorder and each closes it."""
        for task in list(self._pending.values()):
            task.cancel()
        self._recording.close()

    async def _find_or_make(
        self, call: RecordedCall, make: Callable[[], Awaitable[ToolResult]]
    ) -> ToolResult:
        found = await asyncio.to_thread(self._recording.find, call)
        config = self._config
        if found is not None:
            return found
        if config.recording_mode == "frozen":
            return ToolResult("There is no such page or result in the recorded web.", is_error=True)
        if config.recording_mode == "replay":
            raise OutageError(
                f"{config.recording} does not contain {call.tool} {call.arguments}. Record it."
            )
        price = self._prices.get(call.tool, 0.0)
        await asyncio.to_thread(
            self._recording.charge, call.tool, price, config.call_budget, config.cost_budget
        )
        result = await make()
        await asyncio.to_thread(self._recording.add, call, result)
        return result

    def _finish(self, key: Any, task: asyncio.Task[ToolResult]) -> None:
        del self._pending[key]
        if not task.cancelled():
            task.exception()  # retrieved, even if nobody waits any more


class RecordedSource(ToolSource):
    """A tool source whose calls go through a recorder."""

    def __init__(self, source: ToolSource, recorder: Recorder) -> None:
        super().__init__(source.config)
        self._source = source
        self._recorder = recorder
        self._hosts = HostRules.of(source.config)

    @property
    def tools(self) -> Sequence[Tool]:
        """The source's tools."""
        return [replace(tool, run=self._recorded(tool)) for tool in self._source.tools]

    async def close(self) -> None:
        """Close the source and the recorder."""
        await self._source.close()
        self._recorder.close()

    def _recorded(self, tool: Tool) -> Run:
        async def run(arguments: Mapping[str, Any], task: Any) -> ToolResult:
            page = str(arguments.get(tool.follows or "", ""))
            if self._hosts.allows(page):  # a refused page is neither recorded nor paid for
                call = RecordedCall.of(tool.name, str(self._source.backend), arguments)
                result = await self._recorder.call(call, lambda: tool.run(arguments, task))
                page = result.origin
                if self._hosts.allows(page):
                    return result
            return ToolResult(f"{page} may not be visited.", is_error=True)

        return run


def recorded_text(config: Any, name: str, backend: str, fetch: Callable[[], str]) -> str | None:
    """Return what `fetch` returns and record it; in other modes return what was recorded last.

    Args:
        config: A `WebConfig` that names a recording.
        name: Stands for a tool's name.
        backend: As in `RecordedCall`.
        fetch: Gets the text.
    """
    call = RecordedCall.of(name, backend, {})
    recording = Recording(config.recording, config.recording_mode != "record")
    try:
        if config.recording_mode != "record":
            found = recording.find(call)
            return None if found is None else found.text
        text = fetch()
        recording.add(call, ToolResult(text))
        return text
    finally:
        recording.close()
