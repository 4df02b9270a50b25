"""Where a data file came from: a JSON file beside it, ``NAME.json``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from atommem.envs.task_files import check_name, write_text
from atommem.errors import ConfigError


def describe_file(path: str | Path) -> dict[str, Any]:
    """Name (without folders), size in bytes and SHA-256 of a file."""
    path = Path(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": digest}


def provenance_path(path: str | Path) -> Path:
    """Where `write_provenance` writes."""
    path = Path(path)
    return path.with_name(f"{path.name}.json")


def check_out(out: Path, inputs: Iterable[Path]) -> None:
    """Raise if `out` is no file of tasks that can be written; or if it, or the file beside it, is one that is read.

    Raises:
        ConfigError: It is so.
    """
    check_name(out)
    for made in (out, provenance_path(out)):
        for given in inputs:
            if made.exists() and given.exists() and made.samefile(given):
                raise ConfigError(
                    f"out is {out}, which would overwrite the input {given}: give another name."
                )


def write_provenance(path: str | Path, values: Mapping[str, Any]) -> Path:
    """Write `values` beside the data file `path`, with the file itself, the time (UTC) and the package's version.

    Returns:
        The file written.
    """
    path = Path(path)
    beside = provenance_path(path)
    everything = {
        **values,
        "output": describe_file(path),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "atommem": version("atommem"),
    }
    write_text(beside, json.dumps(everything, indent=2, ensure_ascii=False) + "\n")
    return beside
