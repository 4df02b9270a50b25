"""Memories that are there already, as entries with what is known of them: our logs, mem0's local store, JSON Lines."""

from __future__ import annotations

import json
import pickle
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from atommem.envs.benchmarks.rows import read_rows
from atommem.errors import DataError, TraceError
from atommem.experience.bank_file import FORMAT, read_bank
from atommem.memory.log import Entry, replay
from atommem.session_state import SessionState
from atommem.trace import read_trace

_TEXT = ("text", "memory", "content", "data", "query")


@dataclass(frozen=True)
class Store:
    """What was found.

    Attributes:
        kind: What kind of store it is, for people.
        entries: Oldest first.
        uses_known: Whether the store says how often entries were shown.
    """

    kind: str
    entries: tuple[Entry, ...]
    uses_known: bool


def read_store(path: str | Path) -> Store:
    """A session's file, an episode's trace (its memory at the end) or an experience bank of ours, a folder or file of
    mem0's local Qdrant, or JSON Lines.

    Rows of JSON Lines have a ``text`` (or memory, content, data, query); ``shown`` counts uses where it is there.

    Raises:
        DataError: It is none of these, or damaged.
    """
    path = Path(path)
    if path.is_dir() or path.suffix in (".sqlite", ".db"):
        return _mem0(path)
    try:
        with path.open("rb") as file:
            line = file.readline()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read as a store ({error.strerror}): see atommem audit --help."
        ) from error
    try:
        first = json.loads(line)
    except ValueError:
        first = None  # not ours: rows say what is wrong with them
    kind = first.get("type") if isinstance(first, dict) else None
    try:
        if kind == "session":
            state = SessionState.load(path)
            entries = replay(state.operations, state.memory).entries.values()
            return Store("session of AtomMem", tuple(entries), True)
        if kind == "episode":
            log = [
                operation
                for step in read_trace(path).episode.steps
                for operation in step.operations
            ]
            return Store("episode of AtomMem", tuple(replay(log).entries.values()), True)
        if kind == "experience bank" and first.get("format") == FORMAT:
            _, log = read_bank(path.read_bytes(), path)
            return Store("experience bank", tuple(replay(log).entries.values()), True)
    except (TraceError, ValueError, KeyError, TypeError) as error:
        raise DataError(str(error) if str(path) in str(error) else f"{path}: {error}") from error
    rows = [row.values for row in read_rows(path)]
    return Store("JSON Lines", _entries(rows), any("shown" in row for row in rows))


def _entries(rows: Iterable[Mapping[str, Any]]) -> tuple[Entry, ...]:
    found = []
    for number, row in enumerate(rows, start=1):
        text = next((row[name] for name in _TEXT if isinstance(row.get(name), str)), None)
        if text is None:
            raise DataError(
                f"row {number} has no text: it needs one of {', '.join(_TEXT)}, and has {', '.join(row)}."
            )
        shown = row.get("shown", 0)
        found.append(
            Entry(number, text, number, number, shown=shown if isinstance(shown, int) else 0)
        )
    return tuple(found)


def _mem0(path: Path) -> Store:
    """The payloads of the points of mem0's local vector store: what it calls data, oldest first."""
    files = [path] if not path.is_dir() else sorted(path.rglob("storage.sqlite"))
    points: list[dict[str, Any]] = []
    for file in files:
        try:
            connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
            try:
                points += [
                    _payload(blob) for (blob,) in connection.execute("SELECT point FROM points")
                ]
            finally:
                connection.close()
        except Exception as error:  # a damaged pickle raises anything
            raise DataError(f"{file} is no local store of mem0 ({error}).") from error
    memories = [payload for payload in points if isinstance(payload.get("data"), str)]
    if not memories:
        raise DataError(
            f"{path} has no memories of mem0: give the folder in which its storage.sqlite lies."
        )
    return Store(
        "mem0", _entries(sorted(memories, key=lambda row: str(row.get("created_at") or ""))), False
    )


class _Plain(pickle.Unpickler):
    """Reads what Qdrant's local mode pickles, and makes nothing of it but plain objects: a pickle may run anything."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith(("qdrant_client.", "pydantic", "uuid")) or (module, name) == (
            "copyreg",
            "_reconstructor",
        ):
            return _Holder
        if (module, name) in (
            ("builtins", "object"),
            ("builtins", "set"),
            ("builtins", "frozenset"),
        ):
            return {"object": object, "set": set, "frozenset": frozenset}[name]
        if module.startswith("numpy") or (module, name) == ("_codecs", "encode"):
            return _Holder
        raise ValueError(f"a point holds {module}.{name}, which is not read")


class _Holder:
    """Stands for an object of a class that is not loaded; `state` is what it was made of."""

    state: Any = None

    def __new__(cls, *args: Any, **kwargs: Any) -> _Holder:
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _payload(blob: bytes) -> dict[str, Any]:
    point = _Plain(BytesIO(blob)).load()
    state = getattr(point, "state", None)
    if isinstance(state, dict):
        state = state.get("__dict__", state)
    payload = state.get("payload") if isinstance(state, dict) else None
    return payload if isinstance(payload, dict) else {}
