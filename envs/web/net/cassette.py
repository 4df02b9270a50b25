"""A cassette: one SQLite file with every call of a tool that was made, and what came of it.

Several processes may share one. Of calls that are alike, one is made, and the others wait for it. The call of a process
that is killed is made again by whoever needs it.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import zstandard

from atommem.envs.web.sqlite_file import SqliteFile
from atommem.envs.web.tools import Link, ToolResult
from atommem.errors import BudgetSpentError, ConfigError, DataError, OutageError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS calls (
    key BLOB PRIMARY KEY, tool TEXT NOT NULL, backend TEXT NOT NULL, arguments TEXT NOT NULL,
    state TEXT NOT NULL, holder TEXT, until REAL, time REAL NOT NULL, result BLOB
);
CREATE TABLE IF NOT EXISTS spent (tool TEXT PRIMARY KEY, calls INTEGER NOT NULL, cost REAL NOT NULL);
"""
LEASE_SECONDS = 30.0
"""For how long a call is left to who makes it, unless it says again that it does."""
_CLOCKS = 60.0
"""Seconds by which the clocks of two machines may differ."""
_LARGEST = 64_000_000
"""Bytes of a result."""
_LONGEST_MESSAGE = 1000
_MINE = "key = ? AND state = 'made' AND holder = ?"
"""What a process may change: a call whose lease it has let run out is another's, and so is what came of it."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """What is asked of a tool.

    Attributes:
        tool: Its name.
        backend: What answers, with its version and what else changes its answers.
        arguments: As JSON with sorted keys.
    """

    tool: str
    backend: str
    arguments: str

    @classmethod
    def of(cls, tool: str, backend: str, arguments: Mapping[str, Any]) -> RecordedCall:
        """The call with these arguments."""
        return cls(
            tool, backend, json.dumps(dict(arguments), sort_keys=True, separators=(",", ":"))
        )

    @property
    def values(self) -> Mapping[str, Any]:
        """The arguments.

        Raises:
            DataError: They are none: a cassette's may be damaged.
        """
        try:
            values = json.loads(self.arguments)
        except (ValueError, RecursionError) as error:
            raise _damaged(error) from error
        if not isinstance(values, dict):
            raise _damaged("arguments are no JSON object")
        return values

    @property
    def key(self) -> bytes:
        """By which it is found."""
        return hashlib.sha256(
            json.dumps([self.tool, self.backend, self.arguments]).encode()
        ).digest()


@dataclass(frozen=True, slots=True)
class Budget:
    """What all calls on a cassette may come to, over its whole life: calls, and money at `prices` (by tool)."""

    calls: int | None = None
    cost: float | None = None
    prices: Mapping[str, float] | None = None


class Cassette:
    """A cassette file, used by one thread at a time.

    Args:
        path: The file; made if it is not there.
        budget: What may be spent.
        read_only: Whether nothing may be recorded.

    Raises:
        ConfigError: There is no such file to be read, or the folder cannot be written.
        DataError: It is no cassette, or (whatever is done with it) damaged.
    """

    def __init__(
        self, path: str | Path, budget: Budget | None = None, read_only: bool = False
    ) -> None:
        self.path = Path(path)
        self._budget = budget or Budget()
        if read_only and not self.path.is_file():
            raise ConfigError(
                f"there is no cassette {path}: record one first (cassette_mode live)."
            )
        self._file = SqliteFile(self.path, "cassette", None if read_only else _SCHEMA)
        self._run = self._file.rows
        self._run("SELECT key, result FROM calls LIMIT 1")  # another's file is refused at once

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def found(self, call: RecordedCall) -> ToolResult | None:
        """What came of `call`, None if it was not recorded."""
        rows = self._run("SELECT result FROM calls WHERE key = ? AND state = 'done'", call.key)
        return _unpacked(rows[0][0]) if rows else None

    def begin(self, call: RecordedCall, since: float) -> ToolResult | bool:
        """What came of `call`; or True if it is now yours to make, False if somebody else makes it.

        An outage counts for those who have waited for it (`since`, in seconds of the epoch): they do not ask again.

        Raises:
            OutageError: Who made it had an outage.
            BudgetSpentError: It would have to be made, and the budget has no call left.
        """
        with self._file.transaction():
            columns = "state, result, CAST(holder AS TEXT), CAST(until AS REAL), CAST(time AS REAL)"
            rows = self._run(f"SELECT {columns} FROM calls WHERE key = ?", call.key)
            for state, result, holder, until, when in rows:
                if state == "done":
                    return _unpacked(result)
                if state == "failed" and when >= since:
                    raise OutageError(_unzipped(result).decode(errors="replace")[:_LONGEST_MESSAGE])
                if (
                    state == "made"
                    and 0 < (until or 0) - time.time() <= LEASE_SECONDS + _CLOCKS
                    and _lives(holder)
                ):
                    return False
            self._spend(call.tool)
            now = time.time()
            values = (
                call.key,
                call.tool,
                call.backend,
                call.arguments,
                _holder(),
                now + LEASE_SECONDS,
                now,
            )
            self._run(
                "INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, 'made', ?, ?, ?, NULL)", *values
            )
        return True

    def renew(self, call: RecordedCall) -> None:
        """Say that `call` is still being made."""
        self._run(
            f"UPDATE calls SET until = ? WHERE {_MINE}", time.time() + LEASE_SECONDS, *_mine(call)
        )

    def end(self, call: RecordedCall, result: ToolResult) -> None:
        """Record what came of `call`."""
        self._set(call, "done", _packed(result))

    def note(self, call: RecordedCall, result: ToolResult) -> None:
        """Record what nobody was paid for: what a server says of its tools."""
        values = (call.key, call.tool, call.backend, call.arguments, time.time(), _packed(result))
        self._run(
            "INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, 'done', NULL, NULL, ?, ?)", *values
        )

    def fail(self, call: RecordedCall, message: str) -> None:
        """Record that `call` had an outage, for those who wait for it now."""
        self._set(call, "failed", zstandard.compress(message.encode()))

    def release(self, call: RecordedCall) -> None:
        """Leave `call` to the next one who needs it: it was given up."""
        self._run(f"DELETE FROM calls WHERE {_MINE}", *_mine(call))

    def results(self) -> Iterator[tuple[RecordedCall, ToolResult]]:
        """All that was recorded, in the order in which it was."""
        columns = "CAST(tool AS TEXT), CAST(backend AS TEXT), CAST(arguments AS TEXT), result"
        statement = f"SELECT {columns} FROM calls WHERE state = 'done' ORDER BY time, key"
        for tool, backend, arguments, result in self._file.each(statement):
            yield RecordedCall(tool, backend, arguments), _unpacked(result)

    def recorded(self) -> list[tuple[str, str, int]]:
        """How many calls were recorded of each tool and backend."""
        counted = "CAST(tool AS TEXT), CAST(backend AS TEXT), COUNT(*)"
        return self._run(
            f"SELECT {counted} FROM calls WHERE state = 'done' GROUP BY 1, 2 ORDER BY 1, 2"
        )

    def spent(self) -> dict[str, tuple[int, float]]:
        """Calls that were made, and what they cost, by tool."""
        columns = "CAST(tool AS TEXT), CAST(calls AS INTEGER), CAST(cost AS REAL)"
        rows = self._run(f"SELECT {columns} FROM spent ORDER BY tool")
        return {tool: (calls, cost) for tool, calls, cost in rows}

    def _set(self, call: RecordedCall, state: str, result: bytes) -> None:
        statement = f"UPDATE calls SET state = ?, holder = NULL, time = ?, result = ? WHERE {_MINE}"
        self._run(statement, state, time.time(), result, *_mine(call))

    def _spend(self, tool: str) -> None:
        """Count a call before it is made: what is spent is never more than what is counted."""
        ((calls, cost),) = self._run(
            "SELECT COALESCE(SUM(calls), 0), COALESCE(SUM(cost), 0) FROM spent"
        )
        price = (self._budget.prices or {}).get(tool, 0.0)
        most_calls, most_cost = self._budget.calls, self._budget.cost
        if most_calls is not None and calls >= most_calls:
            raise BudgetSpentError(
                f"call_budget is spent: {calls} calls are recorded on {self.path}. Give more."
            )
        # Prices add up with rounding errors; a thousandth of a call is none.
        if most_cost is not None and cost + price > most_cost + price / 1000:
            raise BudgetSpentError(
                f"cost_budget is spent: {cost:g} of {most_cost:g}, on {self.path}. Give more."
            )
        counted = "ON CONFLICT (tool) DO UPDATE SET calls = calls + 1, cost = cost + ?"
        self._run(f"INSERT INTO spent VALUES (?, 1, ?) {counted}", tool, price, price)


def told(config: Any, what: str, backend: str, ask: Callable[[], str]) -> str | None:
    """What a server says of itself: by `ask`, and noted; or, where nothing may be asked, as it was noted last (None if
    it never was).

    Args:
        config: Settings that name a cassette.
        what: Stands for a tool's name on it.
        backend: The server.
        ask: Asks it.

    Raises:
        AtomMemError: Of `ask` and `Cassette`.
    """
    call = RecordedCall.of(what, backend, {})
    cassette = Cassette(config.cassette, read_only=config.cassette_mode != "live")
    try:
        if config.cassette_mode != "live":
            found = cassette.found(call)
            return None if found is None else found.text
        said = ask()
        cassette.note(call, ToolResult(said))
        return said
    finally:
        cassette.close()


def _packed(result: ToolResult) -> bytes:
    return zstandard.compress(json.dumps(asdict(result)).encode())


def _unpacked(packed: bytes) -> ToolResult:
    """A recorded result. Cassettes are passed on: what is in one may be damaged, or meant to do damage.

    Raises:
        DataError: It is no result.
    """
    try:
        values = json.loads(_unzipped(packed))
        result = ToolResult(**{**values, "links": tuple(Link(**link) for link in values["links"])})
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise _damaged(error) from error
    texts = (
        result.text,
        result.title,
        result.origin,
        *(text for one in result.links for text in astuple(one)),
    )
    if not isinstance(result.is_error, bool) or not all(isinstance(text, str) for text in texts):
        raise _damaged("a value is of the wrong type")
    return result


def _unzipped(packed: bytes) -> bytes:
    """What was zipped.

    Raises:
        DataError: It is nothing of the kind, or too large.
    """
    try:
        if zstandard.frame_content_size(packed) <= _LARGEST:
            return zstandard.decompress(packed, max_output_size=_LARGEST)
    except (zstandard.ZstdError, TypeError) as error:
        raise _damaged(error) from error
    raise _damaged(f"it says that it holds more than {_LARGEST:,} bytes")


def _damaged(why: object) -> DataError:
    return DataError(
        f"what is recorded on the cassette is damaged ({str(why)[:200]}): record it again."
    )


def _mine(call: RecordedCall) -> tuple[bytes, str]:
    return call.key, _holder()


def _holder() -> str:
    """This process."""
    return f"{socket.gethostname()} {os.getpid()}"


def _lives(holder: str | None) -> bool:
    """Whether a process of this machine lives; of another machine's nothing is known but its lease."""
    machine, _, number = (holder or "").rpartition(" ")
    if machine != socket.gethostname() or not number.isdecimal():
        return True
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
