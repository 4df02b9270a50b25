"""The output folder of an evaluation, which can be killed at any time and continued.

==================  ============================================================================
``run.json``        the settings and tasks; a rerun with others is refused
``episodes.jsonl``  a line per scored or failed episode; a rerun repeats the failed ones
``traces/``         a trace per episode
``summary.json``    written when every episode has finished
==================  ============================================================================
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from atommem.environment import TaskDescription
from atommem.envs.scoring.records import EpisodeRecord
from atommem.episode import Episode
from atommem.errors import ConfigError, DataError
from atommem.files import locked, write_json
from atommem.trace import write_trace

MANIFEST = "run.json"
EPISODES = "episodes.jsonl"
SUMMARY = "summary.json"
TRACES = "traces"


class OutputFolder:
    """Loads finished records and stores new ones; holds a lock until it is closed.

    `finished` has the latest record of each episode. ConfigError if the folder has another
    evaluation, or one runs in it; DataError if ``episodes.jsonl`` is damaged before its last line.
    """

    def __init__(self, path: str | Path, manifest: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.manifest: dict[str, Any] = json.loads(json.dumps(manifest))  # as it is read back
        file = self.path / EPISODES
        with ExitStack() as stack:  # after an error it closes the file and frees the lock
            stack.enter_context(locked("output_dir", self.path))
            self._file = stack.enter_context(file.open("a+b"))
            self._file.seek(0)
            content = self._file.read()
            self._check_manifest(empty=not content)
            self._file.truncate(content.rfind(b"\n") + 1)  # a line that a kill cut off
            self.finished = parse_records(content, file)
            self.close = stack.pop_all().close

    def add(self, task: TaskDescription, episode: Episode, record: EpisodeRecord) -> None:
        """Store an episode durably: first its trace, then its line."""
        write_trace(trace_path(self.path, record), episode, asdict(task), self.manifest)
        self._file.write(json.dumps(asdict(record)).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _check_manifest(self, empty: bool) -> None:
        path = self.path / MANIFEST
        if empty:  # a folder without episodes belongs to nobody
            write_json(path, self.manifest)
            return
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: {error}. Give another output folder.") from error
        if differences := list(_differences(stored, self.manifest)):
            raise ConfigError(
                f"{self.path} has another evaluation: {'; '.join(differences)}. Give another "
                "output folder, or the folder's settings and data."
            )


def parse_records(content: bytes, path: Path) -> dict[tuple[str, int], EpisodeRecord]:
    """Parse lines into the latest record of each episode; a torn last line is left out."""
    records = {}
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            record = EpisodeRecord.from_json(json.loads(line))
        except (ValueError, DataError) as error:
            raise DataError(
                f"{path}, line {number}: {error}. Remove the line to run its episode again."
            ) from error
        records[record.key] = record
    return records


def trace_path(folder: Path, record: EpisodeRecord) -> Path:
    return folder / TRACES / f"{file_stem(record.task_id)}.{record.sample}.jsonl"


def file_stem(task_id: str) -> str:
    """Return a file name for `task_id`: itself, or a readable form with a digest."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", task_id)[:80]
    if safe == task_id:
        return safe
    digest = hashlib.blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
    return f"{safe}-{digest}"


def _differences(stored: Any, given: Any, name: str = "") -> Iterator[str]:
    """Name what differs: "memory.layout is 'paper' there and 'prefix' now"."""
    if isinstance(stored, dict) and isinstance(given, dict):
        for key in sorted(stored.keys() | given.keys()):
            place = f"{name}.{key}" if name else key
            yield from _differences(stored.get(key, "not set"), given.get(key, "not set"), place)
    elif stored != given:
        yield f"{name} is {stored!r} there and {given!r} now"
