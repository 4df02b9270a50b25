"""A session that was put down: JSON values, and the file that keeps them.

A file is JSON Lines. Its first line is `SessionState.to_json`; every further line is what came since the line before::

    {"type": "session", "format": 1, "key": "t1/0", "turns": 3, "sampled": 41,
     "memory": {where the log begins: a snapshot}, "operations": [the log since]}
    {"turns": 4, "sampled": 52, "operations": [...]}

`SessionState.save` writes one line, in time and bytes that grow with the session. `SessionFile` appends one after every
turn, as long as that turn's operations. Either is read in time that grows with the log. Vectors, should they be kept
at all, lie beside it (``FILE.vectors``).
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
    """All that another process needs to go on with a session: its agent's settings, weights and embedder apart.

    Attributes:
        key: Of the session.
        turns: Completions that it has had: the number of its next step.
        sampled: Tokens in them.
        memory: Its memory where the log begins.
        operations: The log since: with it, the memory as it stands, and as it was at any step.
        vectors: Of its texts. Unset: they are embedded anew when it is taken up. They are no part of the JSON.
    """

    key: str
    turns: int
    sampled: int
    memory: Snapshot
    operations: tuple[Operation, ...] = ()
    vectors: TextVectors | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON values, the vectors left out."""
        return {
            "type": "session",
            "format": FORMAT,
            "key": self.key,
            "turns": self.turns,
            "sampled": self.sampled,
            "memory": self.memory.to_json(),
            "operations": [to_json(operation) for operation in self.operations],
        }

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> SessionState:
        """The inverse of `to_json`.

        Raises:
            TraceError: It is no session, one of another format, or damaged.
        """
        if not isinstance(record, Mapping) or record.get("type") != "session":
            raise TraceError("this is no session that was put down.")
        if record.get("format") != FORMAT:
            raise TraceError(
                f"this session has format {record.get('format')!r}, this version reads {FORMAT}."
            )
        try:
            memory = Snapshot.from_json(record["memory"])
            return _since(SessionState(str(record["key"]), 0, 0, memory), record)
        except _DAMAGE as error:
            raise TraceError(f"a session is damaged: {type(error).__name__} {error}.") from error

    def save(self, path: str | Path) -> Path:
        """Write it to `path`, whole or not at all, and its vectors, if it has any, to ``path.vectors``."""
        path = Path(path)
        vectors = vectors_path(path)
        if self.vectors is None:
            vectors.unlink(missing_ok=True)
        else:
            self.vectors.save(vectors)
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
        """Read what `save` or a `SessionFile` wrote; a last line that was cut off is passed over.

        Raises:
            TraceError: There is no such file, it is another's, or damaged.
        """
        return _read(Path(path))[0]


class SessionFile:
    """A session on disk that is put down after every turn, at the cost of that turn.

    A process that is killed leaves its file whole. A machine that loses its power may lose the last turns: appended
    lines are left to the operating system. One process at a time may write.

    Args:
        path: The file. Nothing is read or written yet.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._written: SessionState | None = None
        self._end = 0

    def read(self) -> SessionState:
        """What it holds, to be taken up. What is written then is appended.

        Raises:
            TraceError: There is no such file, it is another's, or damaged.
        """
        self._written, self._end = _read(self.path)
        return self._written

    def write(self, state: SessionState) -> None:
        """Put down `state`: appended where it goes on from what was written last, and written anew otherwise.

        Vectors are written whole each time: give them when a session is put down for good.
        """
        before = self._written
        if before is None or not _goes_on(before, state):
            state.save(self.path)
            self._end = self.path.stat().st_size
        else:
            line = {
                "turns": state.turns,
                "sampled": state.sampled,
                "operations": [
                    to_json(operation) for operation in state.operations[len(before.operations) :]
                ],
            }
            with self.path.open("r+b") as file:
                file.truncate(self._end)  # of a line that was cut off
                file.seek(self._end)
                file.write(json.dumps(line).encode() + b"\n")
                self._end = file.tell()
            if state.vectors is not None:
                state.vectors.save(vectors_path(self.path))
        self._written = replace(state, vectors=None)


def _read(path: Path) -> tuple[SessionState, int]:
    """A file's session, and where its last whole line ends."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TraceError(f"cannot read the session {path}: {error.strerror or error}") from error
    end = raw.rfind(b"\n") + 1
    lines = raw[:end].splitlines()
    if not lines:
        raise TraceError(f"{path} is no session: it has no whole line.")
    try:
        parts = [SessionState.from_json(_parsed(lines[0]))]
        for line in lines[1:]:
            parts.append(_since(replace(parts[-1], operations=()), _parsed(line)))
    except _DAMAGE as error:
        raise TraceError(f"{path} is damaged: {type(error).__name__} {error}.") from error
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error
    operations = tuple(operation for part in parts for operation in part.operations)
    return replace(parts[-1], operations=operations, vectors=TextVectors.beside(path)), end


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise TraceError(f"a line is not JSON ({error}).") from error


def _since(state: SessionState, record: Mapping[str, Any]) -> SessionState:
    """`state` with what a line adds to it."""
    operations = tuple(operation_from_json(item) for item in record["operations"])
    return replace(
        state,
        turns=int(record["turns"]),
        sampled=int(record["sampled"]),
        operations=state.operations + operations,
    )


def _goes_on(before: SessionState, state: SessionState) -> bool:
    """Whether the log of `state` is that of `before` with more at its end (operations are kept, not copied)."""
    count = len(before.operations)
    return (
        (state.key, state.memory.embedder) == (before.key, before.memory.embedder)
        and state.memory.contents is before.memory.contents
        and len(state.operations) >= count
        and (not count or state.operations[count - 1] is before.operations[count - 1])
    )
