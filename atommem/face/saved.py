"""A memory in a folder: one file that is the truth, and its vectors, which are a cache.

``memory.jsonl``: the first line says which policy, which settings, how many turns, what was read, and where the log
begins; every further line is an operation. ``vectors.npz`` spares the embedder; without it, entries are embedded anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from atommem.config import EmbedderConfig, fields_of
from atommem.embedding.embedder import Vectors
from atommem.errors import ConfigError, DataError, TraceError
from atommem.face.answers import Reading
from atommem.face.engine import Engine
from atommem.memory.contents import Snapshot, replay
from atommem.memory.index import Ids
from atommem.memory.operations import Operation, operation_from_json, to_json
from atommem.session import Session

FORMAT = 1
MEMORY_FILE = "memory.jsonl"
VECTORS_FILE = "vectors.npz"


@dataclass(frozen=True)
class Saved:
    """What the folder says.

    Attributes:
        folder: Which; unset before it is written.
        policy: How it was opened (`PolicyChoice`); None where it was an object.
        given: Settings that the user gave by name.
        embedder: The fields of `EmbedderConfig`: vectors of another one do not compare.
        key, turns, sampled: Of the session.
        readings: What was read.
        start: Where the log begins.
        operations: The log.
    """

    folder: Path | None
    policy: dict[str, Any] | None
    given: dict[str, Any]
    embedder: dict[str, Any]
    key: str
    turns: int
    sampled: int
    readings: tuple[Reading, ...]
    start: Snapshot
    operations: tuple[Operation, ...]

    @classmethod
    def of(cls, engine: Engine, session: Session, readings: Sequence[Reading]) -> Saved:
        """Of a memory in use."""
        return cls(
            None,
            None if engine.choice is None else asdict(engine.choice),
            engine.given,
            asdict(engine.settings.embedder),
            session.key,
            session.turns,
            session.sampled,
            tuple(readings),
            session.memory.at(0),
            session.memory.log,
        )


def write(folder: str | os.PathLike[str], saved: Saved, vectors: tuple[Ids, Vectors]) -> Path:
    """Write both files; a reader finds what was there before, or all of it.

    Raises:
        DataError: They cannot be written.
    """
    path = Path(folder)
    header = {
        "type": "memory",
        "format": FORMAT,
        "policy": saved.policy,
        "given": saved.given,
        "embedder": saved.embedder,
        "session": {"key": saved.key, "turns": saved.turns, "sampled": saved.sampled},
        "readings": [asdict(reading) for reading in saved.readings],
        "start": saved.start.to_json(),
    }
    position = saved.start.contents.position + len(saved.operations)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with _replacing(path / MEMORY_FILE) as draft, draft.open("w", encoding="utf-8") as file:
            file.write(json.dumps(header) + "\n")
            file.writelines(json.dumps(to_json(operation)) + "\n" for operation in saved.operations)
        with _replacing(path / VECTORS_FILE) as draft, draft.open("wb") as file:
            np.savez(file, ids=vectors[0], vectors=vectors[1], position=position, embedder=saved.start.embedder)
    except OSError as error:
        raise DataError(f"the memory cannot be written to {path}: {error.strerror or error}.") from error
    except TypeError as error:
        raise ConfigError(f"a setting of this memory is no JSON value ({error}): give plain values.") from error
    return path


def holds_memory(folder: str | os.PathLike[str]) -> bool:
    """Whether a memory was saved there."""
    return (Path(folder) / MEMORY_FILE).is_file()


def read(folder: str | os.PathLike[str]) -> Saved:
    """What `write` wrote.

    Raises:
        DataError: The folder holds no memory, or a damaged one.
    """
    path = Path(folder) / MEMORY_FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{folder} holds no memory that can be read: {error}. Memory.save writes one.") from error
    try:
        header, *operations = map(json.loads, lines)
        if header["type"] != "memory" or header["format"] != FORMAT:
            raise DataError(f"{path} has format {header['format']!r}, this version reads {FORMAT}.")
        return Saved(
            Path(folder),
            header["policy"],
            header["given"],
            header["embedder"],
            **header["session"],
            readings=tuple(Reading(**{**item, "steps": tuple(item["steps"])}) for item in header["readings"]),
            start=Snapshot.from_json(header["start"]),
            operations=tuple(map(operation_from_json, operations)),
        )
    except (ValueError, KeyError, TypeError, TraceError) as error:
        raise DataError(f"{path} is no memory, or damaged: {type(error).__name__} {error}.") from error


def open_engine(saved: Saved, policy: Any, settings: Mapping[str, Any], reembed: bool) -> Engine:
    """The engine of a saved memory: its policy unless another is given, its embedder, its settings under new ones.

    Raises:
        ConfigError: Neither names a policy.
    """
    opening = {name: settings[name] for name in ("api", "model", "tokenizer") if name in settings}
    if policy is None:
        if saved.policy is None:
            raise ConfigError(f"the memory in {saved.folder} was made with a Policy object: give one as policy.")
        opening = {**saved.policy, **opening}
        policy = opening.pop("policy")
        opening.pop("max_batch_tokens")
    stored = {} if reembed else fields_of(EmbedderConfig, saved.embedder)
    return Engine.open(policy, stored=stored, **{**saved.given, **opening, **settings})


async def restore(saved: Saved, engine: Engine, reembed: bool) -> Session:
    """The session of a saved memory, its log reaching back to where it began.

    Raises:
        DataError: The log contradicts itself.
        ConfigError: The embedder is another one, and `reembed` is not set.
        OutageError: The embedder is out of reach.
    """
    try:
        now = replace(saved.start, contents=replay(saved.operations, saved.start))
    except TraceError as error:
        raise DataError(f"the memory in {saved.folder} is damaged: {error}") from error
    memory = await engine.agent.restore_memory(now, reembed, _vectors(saved, now))
    memory.reach_back(saved.start, saved.operations)
    session = Session(engine.agent, saved.key, memory)
    session.turns, session.sampled = saved.turns, saved.sampled
    return session


def _vectors(saved: Saved, now: Snapshot) -> tuple[Ids, Vectors] | None:
    """Those in the folder, if they are of this state of the memory."""
    assert saved.folder is not None
    try:
        with np.load(saved.folder / VECTORS_FILE, allow_pickle=False) as found:
            fits = int(found["position"]) == now.contents.position and str(found["embedder"]) == now.embedder
            return (found["ids"], found["vectors"]) if fits else None
    except (OSError, ValueError, KeyError, BadZipFile):
        return None


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A draft beside `path` that takes its place at the end."""
    draft = path.with_name(path.name + ".part")
    try:
        yield draft
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
