"""The folder of one evaluation: it can be interrupted at any moment and continued later.

=================  ==================================================================================
``run.json``       what is evaluated on what; a rerun with anything else is refused
``episodes.jsonl``  one line per episode that ended, on disk before the next one is counted
``traces/``        one trace per episode, for ``atommem trace``
``summary.json``   written when every episode has ended
=================  ==================================================================================
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

from atommem.description import TaskDescription
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
    """Holds the records of earlier runs and takes those of this one. A context manager: closing unlocks it.

    Args:
        path: Created when it is not there.
        manifest: What is evaluated on what, as JSON values. Must equal that of the run that began the folder.

    Raises:
        ConfigError: The folder belongs to another evaluation, or one is running in it right now.
        DataError: ``episodes.jsonl`` is damaged elsewhere than in its last line.

    Attributes:
        finished: The latest record of every episode that earlier runs ended.
        used: What earlier runs spent, episodes that failed and were run again included.
    """

    def __init__(self, path: str | Path, manifest: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        # JSON has no tuples: compare what will be read back.
        self.manifest: dict[str, Any] = json.loads(json.dumps(manifest))
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
        """Store an episode for good: first its trace, then its line."""
        write_trace(trace_path(self.path, record), episode, task.to_json(), self.manifest)
        self._file.write(json.dumps(record.to_json()).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``, whole or not at all."""
        write_json(self.path / SUMMARY, summary)

    def services(self) -> dict[str, Any]:
        """What its summary says of services: of the run that ended the evaluation, whatever later ones found done."""
        try:
            found = json.loads((self.path / SUMMARY).read_text(encoding="utf-8")).get("services")
        except (OSError, ValueError, AttributeError):
            return {}
        return found if isinstance(found, dict) else {}

    def drop_summary(self) -> None:
        """Remove the summary of an earlier run, which the episodes to come will make wrong."""
        (self.path / SUMMARY).unlink(missing_ok=True)

    def _check_manifest(self) -> None:
        path = self.path / MANIFEST
        if not self._file.seek(0, os.SEEK_END):
            # Without an episode the folder holds nothing that another evaluation could be mixed with.
            write_json(path, self.manifest)
            return
        if not path.exists():
            raise ConfigError(
                f"{self.path} holds {EPISODES} but no {MANIFEST}: give another output folder."
            )
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(
                f"{path} is not valid JSON ({error}): give another output folder."
            ) from error
        differences = list(_differences(stored, self.manifest))
        if differences:
            raise ConfigError(
                f"{self.path} holds another evaluation: {'; '.join(differences)}. "
                "Give another output folder, or the settings and data that it was begun with."
            )

    def _load(self) -> dict[tuple[str, int], EpisodeRecord]:
        """The latest record of every episode; a line that an interruption cut off is removed from the file."""
        self._file.seek(0)
        content = self._file.read()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            self._file.truncate(end)
        records: dict[tuple[str, int], EpisodeRecord] = {}
        for record in _records(content[:end], self.path / EPISODES):
            self.used += usage_of(record)
            records[record.key] = record
        return records


def usage_of(record: EpisodeRecord) -> Usage:
    """What an episode spent."""
    return Usage(record.prompt_tokens, record.completion_tokens)


def parse_records(content: bytes, path: Path) -> dict[tuple[str, int], EpisodeRecord]:
    """The latest record of every episode from the whole lines of the file `path`.

    Raises:
        DataError: A line is no record.
    """
    return {record.key: record for record in _records(content, path)}


def _records(content: bytes, path: Path) -> Iterator[EpisodeRecord]:
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            yield EpisodeRecord.from_json(json.loads(line))
        except (ValueError, DataError) as error:
            raise DataError(
                f"{path}, line {number}: {error}. Remove the line to run its episode again."
            ) from error


def trace_path(folder: Path, record: EpisodeRecord) -> Path:
    """Where the trace of `record` lies in an evaluation's folder."""
    return folder / TRACES / f"{file_stem(record.task_id)}.{record.sample}.jsonl"


def file_stem(task_id: str) -> str:
    """A file name for `task_id`: itself if it can be one, otherwise a readable form with a digest."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", task_id)[:80]
    if safe == task_id:
        return safe
    digest = hashlib.blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
    return f"{safe}-{digest}"


def _open_locked(path: Path) -> BinaryIO:
    """Open for appending, with a lock that the operating system frees when the process ends."""
    file = path.open("a+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ConfigError(
            f"an evaluation is running in {path.parent}: wait for it or give another folder."
        ) from error
    return file


_MISSING = object()


def _differences(stored: Any, given: Any, name: str = "") -> Iterator[str]:
    """What differs between two JSON values, as "memory.layout is 'paper' there and 'prefix' now"."""
    if isinstance(stored, dict) and isinstance(given, dict):
        for key in sorted(stored.keys() | given.keys()):
            yield from _differences(
                stored.get(key, _MISSING),
                given.get(key, _MISSING),
                f"{name}.{key}" if name else key,
            )
    elif stored != given:
        yield f"{name} is {_shown(stored)} there and {_shown(given)} now"


def _shown(value: Any) -> str:
    if value is _MISSING:
        return "not set"
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value):
        return f"{value[:8]}..."
    return repr(value)
