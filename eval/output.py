"""The output folder of an evaluation, which can be killed at any time and continued.

==================  ============================================================================
``run.json``        the settings and tasks; a rerun with others is refused
``episodes.jsonl``  a line per finished episode, on disk before the next one counts
``traces/``         a trace per episode
``summary.json``    written when every episode has finished
==================  ============================================================================
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from atommem.environment import TaskDescription
from atommem.envs.scoring.records import EpisodeRecord
from atommem.envs.task_files import write_json
from atommem.episode import Episode
from atommem.errors import ConfigError, DataError
from atommem.eval.budget import Usage
from atommem.trace import write_trace

MANIFEST = "run.json"
EPISODES = "episodes.jsonl"
SUMMARY = "summary.json"
TRACES = "traces"


class OutputFolder:
    """Loads finished records and stores new ones; a context manager that holds a lock.

    Args:
        path: Created if missing.
        manifest: Settings and tasks as JSON values; must equal those of the folder.

    Raises:
        ConfigError: The folder has another evaluation, or one is running in it.
        DataError: ``episodes.jsonl`` is damaged before its last line.

    Attributes:
        finished: The latest record of each finished episode.
        used: Tokens used by earlier runs, including failed episodes.
    """

    def __init__(self, path: str | Path, manifest: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.manifest: dict[str, Any] = json.loads(json.dumps(manifest))  # as it is read back
        self._file = _open_locked(self.path / EPISODES)
        self.used = Usage()
        try:
            self._check_manifest()
            self.finished = self._load()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> OutputFolder:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def add(self, task: TaskDescription, episode: Episode, record: EpisodeRecord) -> None:
        """Store an episode durably: first its trace, then its line."""
        write_trace(trace_path(self.path, record), episode, task.to_json(), self.manifest)
        self._file.write(json.dumps(record.to_json()).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json`` atomically."""
        write_json(self.path / SUMMARY, summary)

    def services(self) -> dict[str, Any]:
        """Return the usage of services in the summary of the run that finished."""
        try:
            found = json.loads((self.path / SUMMARY).read_text(encoding="utf-8")).get("services")
        except (OSError, ValueError, AttributeError):
            return {}
        return found if isinstance(found, dict) else {}

    def drop_summary(self) -> None:
        """Remove the summary, which new episodes will outdate."""
        (self.path / SUMMARY).unlink(missing_ok=True)

    def _check_manifest(self) -> None:
        path = self.path / MANIFEST
        if not self._file.seek(0, os.SEEK_END):  # a folder without episodes belongs to nobody
            write_json(path, self.manifest)
            return
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(
                f"{self.path} has {EPISODES} but no {MANIFEST}. Give another output folder."
            ) from None
        except ValueError as error:
            raise ConfigError(f"{path} is not valid JSON. Give another output folder.") from error
        if differences := list(_differences(stored, self.manifest)):
            raise ConfigError(
                f"{self.path} has another evaluation: {'; '.join(differences)}. Give another "
                "output folder, or the folder's settings and data."
            )

    def _load(self) -> dict[tuple[str, int], EpisodeRecord]:
        self._file.seek(0)
        content = self._file.read()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            self._file.truncate(end)
        records: dict[tuple[str, int], EpisodeRecord] = {}
        for record in _parse_lines(content[:end], self.path / EPISODES):
            self.used += usage_of(record)
            records[record.key] = record
        return records


def usage_of(record: EpisodeRecord) -> Usage:
    """Return the tokens that an episode used."""
    return Usage(record.prompt_tokens, record.completion_tokens)


def parse_records(content: bytes, path: Path) -> dict[tuple[str, int], EpisodeRecord]:
    """Parse whole lines into the latest record of each episode; raises DataError."""
    return {record.key: record for record in _parse_lines(content, path)}


def _parse_lines(content: bytes, path: Path) -> Iterator[EpisodeRecord]:
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            yield EpisodeRecord.from_json(json.loads(line))
        except (ValueError, DataError) as error:
            raise DataError(
                f"{path}, line {number}: {error}. Remove the line to run its episode again."
            ) from error


def trace_path(folder: Path, record: EpisodeRecord) -> Path:
    """Return the path of a record's trace."""
    return folder / TRACES / f"{file_stem(record.task_id)}.{record.sample}.jsonl"


def file_stem(task_id: str) -> str:
    """Return a file name for `task_id`: itself, or a readable form with a digest."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", task_id)[:80]
    if safe == task_id:
        return safe
    digest = hashlib.blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
    return f"{safe}-{digest}"


def _open_locked(path: Path) -> BinaryIO:
    """Open for appending with a lock, which the operating system frees at exit."""
    file = path.open("a+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ConfigError(
            f"an evaluation is running in {path.parent}. Wait for it, or give another folder."
        ) from error
    return file


_UNSET = object()


def _differences(stored: Any, given: Any, name: str = "") -> Iterator[str]:
    """Name what differs: "memory.layout is 'paper' there and 'prefix' now"."""
    if isinstance(stored, dict) and isinstance(given, dict):
        for key in sorted(stored.keys() | given.keys()):
            place = f"{name}.{key}" if name else key
            yield from _differences(stored.get(key, _UNSET), given.get(key, _UNSET), place)
    elif stored != given:
        yield f"{name} is {_format_value(stored)} there and {_format_value(given)} now"


def _format_value(value: Any) -> str:
    if value is _UNSET:
        return "not set"
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value):
        return f"{value[:8]}..."
    return repr(value)
