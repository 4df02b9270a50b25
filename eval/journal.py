"""Results of a long computation in a file as they come: a run after an interruption goes on from them."""

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

_ASIDE = ("out", "cache", "json", "check", "run")
"""Arguments that change no result."""
_INPUTS = ("*.json*", "*/*.json*", "*.safetensors", "*.gguf")


class Journal:
    """JSON values by name, kept in a file. What is read back is what was written, torn last lines excepted.

    Args:
        path: The file, made with the first value; None keeps nothing beyond this process.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._known: dict[str, Any] = {}
        if path is not None and path.is_file():
            content = path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if whole != content:
                os.truncate(path, len(whole))
            self._known = dict(map(json.loads, whole.splitlines()))

    def __len__(self) -> int:
        return len(self._known)

    def get(self, name: str) -> Any:
        """The value of that name, or None."""
        return self._known.get(name)

    def add(self, name: str, value: Any) -> Any:
        """Keep a value (None is no value); returns it as it will be read back: tuples are lists."""
        line = json.dumps([name, value])
        if self.path is not None:
            self._append(self.path, line.encode() + b"\n")
        self._known[name] = json.loads(line)[1]
        return self._known[name]

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """The value of that name: as it was kept, or else made now."""
        known = self.get(name)
        return self.add(name, make()) if known is None else known

    def _append(self, path: Path, line: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            length = file.tell()
            try:
                file.write(line)
                os.fsync(file.fileno())
            except BaseException as error:
                file.truncate(length)
                if not length:
                    path.unlink()
                if isinstance(error, OSError):
                    raise type(error)(error.errno, error.strerror, str(path)) from error
                raise


@contextmanager
def resumable(
    folder: Path, name: str, settings: Mapping[str, Any], tell: Callable[[str], None]
) -> Iterator[Journal]:
    """A journal for one computation: kept when that is interrupted or cannot go on, removed when it is done.

    Its file is named by what the results depend on, so that those of other settings are never taken up. An error that
    is no `AtomMemError` removes it too: it is in code (an agent of the user's), which will be another the next time.

    Args:
        folder: Where it lies.
        name: What its name begins with.
        settings: All that the results depend on. Of files and folders that they name, size and time count too.
        tell: Gets a line when results are taken up, and when they are left for the next run.
    """
    inputs = [[name, value, _state(value)] for name, value in sorted(settings.items())]
    digest = hashlib.sha256(
        json.dumps([__version__, inputs], default=str).encode("utf-8", "replace")
    ).hexdigest()[:16]
    path = folder / f"{name}-{digest}.jsonl"
    journal = Journal(path)
    if journal:
        tell(f"{path}: {len(journal)} results of a run that was interrupted are taken up.")
    try:
        yield journal
    except (AtomMemError, OSError, KeyboardInterrupt):
        if journal:
            tell(f"{len(journal)} results are kept in {path}: the same command goes on from there.")
        raise
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    path.unlink(missing_ok=True)


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What of a command's arguments its results depend on."""
    return {name: value for name, value in vars(arguments).items() if name not in _ASIDE}


def _state(value: Any) -> Any:
    """Name, size and time of the files that a setting names, or of the data and weights in its folder."""
    if isinstance(value, (list, tuple)):
        return [_state(one) for one in value]
    if not isinstance(value, (str, Path)):
        return None
    files: list[Path] = []
    words = {str(value), *re.split(r"[=(),]", str(value))} - {
        ""
    }  # the rule linear(weights=FILE) names one
    for path in map(Path, words):
        if os.path.isdir(path):
            files += [file for kind in _INPUTS for file in path.glob(kind)]
        elif os.path.isfile(path):
            files.append(path)
    files.sort()
    return [(str(file), (found := file.stat()).st_size, found.st_mtime_ns) for file in files]
