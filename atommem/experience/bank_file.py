"""A bank on disk: JSON Lines, a line for everything that was acknowledged at once.

The first line says what the file is, every other one is a list of operations. A line is handed to the operating system
whole before `append` returns, so a process that is killed loses nothing that it was told is kept; a line that was cut
off is taken away when the file is opened. A power failure may take the last lines, unless ``durable`` asks the disk.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atommem.errors import ConfigError, TraceError
from atommem.memory.log import Operation, operation_from_json, to_json

FORMAT = 1
_BEGINNING = b'{"type":"experience bank",'
"""Of every bank: what else has a last line that seems cut off is somebody's file."""
_ENCODING = "utf-8", "surrogatepass"
"""As `json.loads` decodes: half a character that a model wrote stops no bank."""


class BankFile:
    """One bank's file, open to append; one process at a time has it.

    Args:
        path: It is made where it is not there.
        durable: Wait for the disk at every line.

    Raises:
        ConfigError: Another process has it.
    """

    def __init__(self, path: str | Path, durable: bool = False) -> None:
        self.path = Path(path)
        self._durable = durable
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            if not isinstance(error, BlockingIOError):
                raise
            raise ConfigError(
                f"{path} is open in another process: close that bank, or take another file."
            ) from error

    def read(self, header: dict[str, Any]) -> tuple[dict[str, Any], list[Operation]]:
        """Its header and the operations that it holds, in order.

        Args:
            header: Of a new file: what its vectors and random numbers are.

        Raises:
            TraceError: The file is no bank, or damaged before its end.
        """
        raw = self.path.read_bytes()
        end = raw.rfind(b"\n") + 1
        if end < len(raw):
            if not raw.startswith(_BEGINNING[: len(raw)]):
                raise TraceError(
                    f"{self.path} is no experience bank, and is left as it is: take another file."
                )
            os.ftruncate(self._fd, end)
        if not end:
            header = {"type": "experience bank", "format": FORMAT, **header}
            self._write(header)
            return header, []
        return read_bank(raw, self.path)

    def append(self, operations: Sequence[Operation]) -> None:
        """Add a line; when this returns, a process that is killed has not lost it."""
        self._write([to_json(operation) for operation in operations])

    def close(self) -> None:
        """Let others have it."""
        os.close(self._fd)

    def _write(self, value: Any) -> None:
        line = memoryview(
            json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(*_ENCODING) + b"\n"
        )
        length = os.fstat(self._fd).st_size
        try:
            while line:
                line = line[os.write(self._fd, line) :]
            if self._durable:
                os.fsync(self._fd)
        except BaseException:
            os.ftruncate(self._fd, length)  # the next line must not stand behind a part of this one
            raise


def read_bank(raw: bytes, path: Path) -> tuple[dict[str, Any], list[Operation]]:
    """The header and the operations of a bank's file; a last line that was cut off is no part of it.

    Raises:
        TraceError: It is no bank, or damaged before its end.
    """
    lines = raw.split(b"\n")[:-1]
    try:
        found = json.loads(lines[0])
        if not isinstance(found, dict) or (found.get("type"), found.get("format")) != (
            "experience bank",
            FORMAT,
        ):
            raise TraceError(
                f"{path} is no experience bank of format {FORMAT}: import it, or take another."
            )
        return found, [
            operation_from_json(record) for line in lines[1:] for record in json.loads(line)
        ]
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise TraceError(f"{path} is damaged: {type(error).__name__} {error}.") from error
