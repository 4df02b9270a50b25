"""The texts that a memory has read, and the folder that it is saved in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from atommem.config import EmbedderConfig, fields_of, is_loopback, without_addresses
from atommem.documents import read_path
from atommem.errors import ConfigError, DataError, check_writable
from atommem.run import Runtime, refuse_code
from atommem.session_state import SessionState

MEMORY_FILE = "memory.json"
SCOPE = ("user", "agent", "session")


@dataclass(frozen=True)
class Reading:
    """A text that was read, or is being read."""

    name: str  # also in the entries' source
    chunks: int
    sha256: str  # of the chunks as shown
    steps: tuple[int, ...] = ()  # that read them; fewer than `chunks` after an interruption
    stopped: bool = False  # the policy ended it early (``early_stop``)
    written: int = 0  # characters that the policy wrote for its memory
    cut: int = 0  # of these, characters beyond a limit (``entry_tokens`` and others)

    @property
    def complete(self) -> bool:
        """Whether the text was read to its end, or as far as the policy wanted."""
        return self.stopped or len(self.steps) == self.chunks


@dataclass(frozen=True)
class SavedMemory:
    """What the file ``memory.json`` of a saved memory holds beside its `SessionState`.

    Next to the file lies ``memory.json.vectors``, a cache of embeddings. `policy` is None for a
    `Policy` object; `given` are the settings that the user named.
    """

    policy: dict[str, Any] | None
    given: dict[str, Any]
    embedder: dict[str, Any]
    readings: tuple[Reading, ...]

    @staticmethod
    def exists(folder: str | os.PathLike[str]) -> bool:
        return (Path(folder) / MEMORY_FILE).is_file()

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> SavedMemory:
        """Read a folder; raise DataError if it holds no memory or a damaged one."""
        path = Path(folder) / MEMORY_FILE
        if not path.is_file():
            raise DataError(f"{folder}: holds no memory. Memory.save writes one.")
        try:
            return msgspec.convert(json.loads(path.read_bytes()), cls)
        except (msgspec.ValidationError, ValueError, RecursionError) as error:
            raise DataError(f"{path}: not a memory, or damaged ({error}).") from error

    @classmethod
    def check_folder(cls, folder: str | os.PathLike[str], name: str = "folder") -> Path:
        """Return a folder in which a memory may be written; raise DataError or ConfigError."""
        check_writable(name, folder, folder=True)
        path = Path(folder)
        others = path.is_dir() and any(
            not item.name.lstrip(".").startswith(MEMORY_FILE) for item in path.iterdir()
        )
        if others and not cls.exists(path):
            raise DataError(f"{path}: holds other files and no memory. Give an empty folder.")
        return path

    def write(self, folder: str | os.PathLike[str], session: SessionState) -> Path:
        """Write a folder; the memory there is replaced as a whole."""
        path = self.check_folder(folder)
        path.mkdir(parents=True, exist_ok=True)
        session.save(path / MEMORY_FILE, **asdict(self))
        return path

    def open(self, policy: Any, settings: Mapping[str, Any], reembed: bool = False) -> Runtime:
        """Open the memory's policy, unless another is given, under its settings and new ones.

        A policy on another machine must be given by the user.
        """
        refuse_code("this saved memory", self.given, settings)
        opening: dict[str, Any] = {}
        if policy is None:
            if self.policy is None:
                raise ConfigError("the memory was made with a Policy object. Give it as policy.")
            opening = dict(self.policy)
            policy = opening.pop("policy")
            remote = [name for name in policy if name.startswith("http") and not is_loopback(name)]
            if remote:
                raise ConfigError(
                    f"the memory was made with the policy at {remote[0]}. Give "
                    f"policy={remote[0]!r} if its texts may go there."
                )
        stored = {} if reembed else fields_of(EmbedderConfig, without_addresses(self.embedder))
        given = {**without_addresses(self.given), **opening, **settings}
        return Runtime.open(policy, stored=stored, **given)


def scope_key(names: Mapping[str, str]) -> tuple[str, ...]:
    """Return names in the order of `SCOPE`; ConfigError for others, or if they name nobody."""
    texts = [name for name in names.values() if isinstance(name, str)]
    if not names.keys() <= {*SCOPE} or len(texts) < len(names) or not any(texts):
        raise ConfigError(f"scope={dict(names)}: give texts for {', '.join(SCOPE)}.")
    if len(quote("".join(texts), safe="")) > 250:
        raise ConfigError(f"scope={dict(names)}: too long for a folder's name. Shorten it.")
    return tuple(names.get(name, "") for name in SCOPE)


def scope_files(folder: str | os.PathLike[str]) -> dict[tuple[str, ...], Path]:
    """Return the files of a saved memory's scopes by user, agent and session."""
    paths = sorted(Path(folder).glob(f"scopes/*/{MEMORY_FILE}"))
    return {tuple(map(unquote, path.parent.name.split(","))): path for path in paths}


def text_of(source: str | Path | Iterable[str]) -> tuple[str | list[str], str]:
    """Return a text or its pieces, and the name of its file; raise DataError without text."""
    if isinstance(source, Path):
        return read_path(source), source.name
    if isinstance(source, str):
        if "\n" not in source and len(source) < 4096 and os.path.isfile(source):
            raise DataError(f"{source!r} is the path of a file. Give Path({source!r}) to read it.")
        return _check_text(source, "the text"), ""
    pieces = list(source) if isinstance(source, Iterable) else [source]
    for number, piece in enumerate(pieces, start=1):
        if not isinstance(piece, str):
            raise DataError(f"piece {number} is {type(piece).__name__}, no text. Give strings.")
    pieces = [piece for piece in pieces if piece.strip()]
    _check_text("".join(pieces), "the list of pieces")
    return pieces, ""


def _check_text(text: str, name: str) -> str:
    if not text.strip():
        raise DataError(f"{name} is empty: there is nothing to read.")
    return text
