"""Files that appear whole or not at all."""

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from atommem.errors import ConfigError, DataError, explain


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` at the end, or is removed after an error.

    With `durable`, the content is on disk before it replaces `path`.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            if durable:
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {explain(error)}") from error


def load_beside(module: str, name: str) -> Any:
    """Return the content of a YAML file beside a module, of which `module` is ``__file__``."""
    return yaml.safe_load(Path(module).with_name(name).read_bytes())


def write_text(path: str | Path, text: str, *, durable: bool = False) -> None:
    """Write the whole text to a file, or nothing; DataError if it cannot be written."""
    with replacing(Path(path), durable=durable) as draft:
        draft.write_text(text, encoding="utf-8")


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: str | Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


@contextmanager
def locked(setting: str, folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder; ConfigError, which names `setting`, if one is in it."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise ConfigError(
            f"{setting}={folder}: another run writes there. Wait for it, or give another folder."
        ) from error
    finally:
        os.close(descriptor)


def let_others_read(folder: Path) -> None:
    """Give weights in `folder` the mode of the umask; safetensors writes for the owner alone."""
    umask = os.umask(0o077)
    os.umask(umask)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o666 & ~umask)
