"""A memory in a folder: the session as it was put down, and beside it whose it is and what was read.

``session.jsonl`` is the truth (`atommem.session_state`): where the log begins, and the log. ``session.jsonl.vectors``
spares the embedder; without it, entries are embedded anew. ``memory.json`` says which policy and settings, and which
texts were read at which steps.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from atommem.config import EmbedderConfig, fields_of, is_loopback, without_addresses
from atommem.errors import ConfigError, DataError, TraceError
from atommem.face.answers import Reading
from atommem.face.engine import Engine
from atommem.session import Session
from atommem.session_state import SessionState

FORMAT = 1
MEMORY_FILE = "memory.json"
SESSION_FILE = "session.jsonl"


@dataclass(frozen=True)
class Saved:
    """What the folder says.

    Attributes:
        policy: How it was opened (`PolicyChoice`); None where it was an object.
        given: Settings that the user gave by name.
        embedder: The fields of `EmbedderConfig`: vectors of another one do not compare.
        readings: What was read.
        session: As it was put down.
    """

    policy: dict[str, Any] | None
    given: dict[str, Any]
    embedder: dict[str, Any]
    readings: tuple[Reading, ...]
    session: SessionState

    @classmethod
    def of(cls, engine: Engine, session: Session, readings: Sequence[Reading]) -> Saved:
        """Of a memory in use."""
        return cls(
            None if engine.choice is None else asdict(engine.choice),
            engine.given,
            asdict(engine.settings.embedder),
            tuple(readings),
            session.state(vectors=True),
        )


def write(folder: str | os.PathLike[str], saved: Saved) -> Path:
    """Write a memory to a folder; each of its files is replaced whole.

    Raises:
        DataError: They cannot be written, or the folder is somebody else's.
        ConfigError: A setting is no JSON value.
    """
    path = Path(folder)
    ours = (SESSION_FILE, MEMORY_FILE)
    if (
        path.is_dir()
        and not holds_memory(path)
        and not all(item.name.startswith(ours) for item in path.iterdir())
    ):
        raise DataError(f"{path} holds other things and no memory: give a folder of its own.")
    about = {
        "format": FORMAT,
        "policy": saved.policy,
        "given": saved.given,
        "embedder": saved.embedder,
        "readings": [asdict(reading) for reading in saved.readings],
    }
    try:
        text = json.dumps(about, indent=2)
    except TypeError as error:
        raise ConfigError(
            f"a setting of this memory is no JSON value ({error}): give plain values."
        ) from error
    try:
        path.mkdir(parents=True, exist_ok=True)
        saved.session.save(path / SESSION_FILE)
        draft = path / f"{MEMORY_FILE}.part"
        draft.write_text(text + "\n", encoding="utf-8")
        os.replace(draft, path / MEMORY_FILE)
    except OSError as error:
        raise DataError(
            f"the memory cannot be written to {path}: {error.strerror or error}."
        ) from error
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
        about = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"{folder} holds no memory that can be read: {error}. Memory.save writes one."
        ) from error
    except ValueError as error:
        raise DataError(f"{path} is no memory, or damaged: {error}.") from error
    try:
        if about["format"] != FORMAT:
            raise DataError(f"{path} has format {about['format']!r}, this version reads {FORMAT}.")
        readings = tuple(
            Reading(**{**item, "steps": tuple(item["steps"])}) for item in about["readings"]
        )
        parts = about["policy"], about["given"], about["embedder"]
        return Saved(*parts, readings, SessionState.load(path.with_name(SESSION_FILE)))
    except (KeyError, TypeError, TraceError) as error:
        raise DataError(
            f"the memory in {folder} is damaged: {type(error).__name__} {error}."
        ) from error


def open_engine(saved: Saved, policy: Any, settings: Mapping[str, Any], reembed: bool) -> Engine:
    """The engine of a saved memory: its policy unless another is given, its embedder, its settings under new ones.

    Raises:
        ConfigError: Neither names a policy.
    """
    opening = {name: settings[name] for name in ("api", "model", "tokenizer") if name in settings}
    if policy is None:
        if saved.policy is None:
            raise ConfigError("the memory was made with a Policy object: give one as policy.")
        opening = {**saved.policy, **opening}
        policy = opening.pop("policy")
        opening.pop("max_batch_tokens")
        far = [name for name in policy if name.startswith("http") and not is_loopback(name)]
        if far:
            raise ConfigError(
                f"the memory was made with the policy at {far[0]}: give policy={far[0]!r} if its texts may go there."
            )
    stored = {} if reembed else fields_of(EmbedderConfig, without_addresses(saved.embedder))
    return Engine.open(
        policy, stored=stored, **{**without_addresses(saved.given), **opening, **settings}
    )
