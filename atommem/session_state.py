"""Saved sessions: `SessionState`, and the file that keeps one.

A file is JSON Lines. The first line is `SessionState.to_json`; every further line is what was added
since the line before::

    {"type": "session", "format": 1, "key": "t1/0", "turns": 3, "sampled": 41,
     "memory": {the snapshot at which the log begins}, "operations": [the log since]}
    {"turns": 4, "sampled": 52, "operations": [...]}

Vectors, if they are kept, lie beside it (``FILE.vectors``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from atommem.errors import TraceError
from atommem.memory.log import Operation, Snapshot, operation_from_json, to_json
from atommem.memory.store import TextVectors, vectors_path

FORMAT = 1
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True)
class SessionState:
    """A saved session, without the agent's settings, weights and embedder.

    Attributes:
        key: The session's.
        turns: Its number of completions, which is the index of its next step.
        sampled: Its number of sampled tokens.
        memory: The memory at the beginning of the log.
        operations: The log since.
        vectors: Those of its texts, not part of the JSON; None embeds them again.
    """

    key: str
    turns: int
    sampled: int
    memory: Snapshot
    operations: tuple[Operation, ...] = ()
    vectors: TextVectors | None = None

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, without the vectors."""
        return {
            "type": "session",
            "format": FORMAT,
            "key": self.key,
            **self._line(0),
            "memory": self.memory.to_json(),
        }

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> SessionState:
        """Return the state that `to_json` wrote.

        Raises:
            TraceError: The record is damaged or has another format.
        """
        try:
            if record["type"] != "session" or record["format"] != FORMAT:
                raise ValueError(f"not a session of format {FORMAT}")
            memory = Snapshot.from_json(record["memory"])
            return SessionState(str(record["key"]), 0, 0, memory)._extended(record)
        except _DAMAGE as error:
            raise TraceError(f"session is damaged: {type(error).__name__} {error}.") from error

    def save(self, path: str | Path) -> Path:
        """Write the file `path` as a whole, and the vectors, if any, beside it."""
        path = Path(path)
        if self.vectors is None:
            vectors_path(path).unlink(missing_ok=True)
        else:
            self.vectors.save(vectors_path(path))
        draft = path.with_name(path.name + ".part")
        try:
            with draft.open("w", encoding="utf-8") as file:
                file.write(json.dumps(self.to_json()) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
        return path

    @staticmethod
    def load(path: str | Path) -> SessionState:
        """Read a file of `save` or `SessionFile`; an incomplete last line is ignored.

        Raises:
            TraceError: The file is missing or damaged.
        """
        return _read(Path(path))[0]

    def _line(self, first: int) -> dict[str, Any]:
        """Return the state with its operations from number `first` on."""
        operations = [to_json(operation) for operation in self.operations[first:]]
        return {"turns": self.turns, "sampled": self.sampled, "operations": operations}

    def _extended(self, record: Mapping[str, Any]) -> SessionState:
        """Return this state with what a line adds."""
        new = tuple(operation_from_json(item) for item in record["operations"])
        turns, sampled = int(record["turns"]), int(record["sampled"])
        return replace(self, turns=turns, sampled=sampled, operations=self.operations + new)


class SessionFile:
    """A session's file that takes one line a turn; one process may write it at a time.

    If the process is killed, the file is whole. If the machine loses power, the last turns may be
    lost, because appended lines are not flushed to the disk.

    Args:
        path: The file. Nothing is read or written yet.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._written: SessionState | None = None
        self._end = 0

    def read(self) -> SessionState:
        """Read the file; later writes are appended.

        Raises:
            TraceError: The file is missing or damaged.
        """
        self._written, self._end = _read(self.path)
        return self._written

    def write(self, state: SessionState) -> None:
        """Append what was added since the last write, or write the file anew after an undo.

        Vectors are written as a whole each time.
        """
        before = self._written
        if before is None or not _continues(before, state):
            state.save(self.path)
            self._end = self.path.stat().st_size
        else:
            with self.path.open("r+b") as file:
                file.truncate(self._end)  # an incomplete last line
                file.seek(self._end)
                file.write(json.dumps(state._line(len(before.operations))).encode() + b"\n")
                self._end = file.tell()
            if state.vectors is not None:
                state.vectors.save(vectors_path(self.path))
        self._written = replace(state, vectors=None)


def _read(path: Path) -> tuple[SessionState, int]:
    """Return a file's session, and the end of its last complete line."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TraceError(f"cannot read the session {path}: {error.strerror or error}") from error
    end = raw.rfind(b"\n") + 1
    try:
        first, *records = [json.loads(line) for line in raw[:end].splitlines()]
        state = SessionState.from_json(first)
        # Operations are joined once, so that reading takes linear time.
        parts = [state, *(replace(state, operations=())._extended(record) for record in records)]
    except (*_DAMAGE, TraceError) as error:
        raise TraceError(f"{path} is not a session, or damaged: {error}") from error
    operations = tuple(operation for part in parts for operation in part.operations)
    return replace(parts[-1], operations=operations, vectors=TextVectors.beside(path)), end


def _continues(before: SessionState, state: SessionState) -> bool:
    """Whether the log of `state` extends that of `before` (operations are shared, not copied)."""
    count = len(before.operations)
    return (
        (state.key, state.memory.embedder) == (before.key, before.memory.embedder)
        and state.memory.contents is before.memory.contents
        and len(state.operations) >= count
        and (not count or state.operations[count - 1] is before.operations[count - 1])
    )
