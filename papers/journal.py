"""Journal of results, from which a long computation resumes after an interruption."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atommem import __version__
from atommem.errors import AtomMemError

_NOT_INPUTS = ("out", "cache", "json", "check", "run", "part")
"""Arguments that do not change results."""
_DATA_FILES = ("*.json*", "*/*.json*", "*.safetensors", "*.gguf")


class Journal:
    """JSON values by name, appended to a file; a torn last line is dropped.

    Args:
        path: The file, created with the first value; None stores in memory only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._values: dict[str, Any] = {}
        if path is not None and path.is_file():
            content = path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if whole != content:
                os.truncate(path, len(whole))
            self._values = dict(map(json.loads, whole.splitlines()))

    def __len__(self) -> int:
        return len(self._values)

    def get(self, name: str) -> Any:
        """Return the value of that name, or None."""
        return self._values.get(name)

    def add(self, name: str, value: Any) -> Any:
        """Store a value; returns it as JSON reads it back (tuples become lists)."""
        line = json.dumps([name, value])
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file:
                file.write(line.encode() + b"\n")
                os.fsync(file.fileno())
        self._values[name] = json.loads(line)[1]
        return self._values[name]

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return the stored value of that name, or compute and store it."""
        value = self.get(name)
        return self.add(name, compute()) if value is None else value


@contextmanager
def resumable(
    folder: Path, name: str, settings: Mapping[str, Any], progress: Callable[[str], None]
) -> Iterator[Journal]:
    """Open the journal of one computation; it is removed when the computation succeeds.

    The file's name depends on `settings`, and on size and time of files that they name. After a
    bug (an error that is not an `AtomMemError`), the journal is removed too.
    """
    inputs = [[key, value, _file_state(value)] for key, value in sorted(settings.items())]
    text = json.dumps([__version__, inputs], default=str).encode("utf-8", "replace")
    path = folder / f"{name}-{hashlib.sha256(text).hexdigest()[:16]}.jsonl"
    journal = Journal(path)
    if journal:
        progress(f"{path}: resuming with {len(journal)} results of an interrupted run")
    try:
        yield journal
    except (AtomMemError, OSError, KeyboardInterrupt):
        if journal:
            progress(f"{path}: {len(journal)} results stored. Run the same command to resume.")
        raise
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    path.unlink(missing_ok=True)


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that results depend on."""
    return {name: value for name, value in vars(arguments).items() if name not in _NOT_INPUTS}


def _file_state(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_file_state(one) for one in value]
    if not isinstance(value, (str, Path)):
        return None
    files: list[Path] = []
    words = {str(value), *re.split(r"[=(),]", str(value))} - {""}  # linear(weights=FILE)
    for path in map(Path, words):
        if path.is_dir():
            files += [file for pattern in _DATA_FILES for file in path.glob(pattern)]
        elif path.is_file():
            files.append(path)
    return [(str(file), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in sorted(files)]
