"""Checkpoint folders on disk: written aside, made durable, and only then given their name.

A checkpoint is written to ``output_dir/.partial/checkpoint-N``, by all processes. Once every file of it is on disk, a
marker that lists them with size and checksum is added and the folder is renamed to ``output_dir/checkpoint-N``. A
process that is killed at any moment therefore leaves whole checkpoints and a ``.partial`` folder, which the next start
empties; whatever is not whole under a checkpoint's name has been damaged since.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import zlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

MARKER = "checkpoint_complete.json"
PARTIAL = ".partial"
_BLOCK = 1 << 20


def checkpoint_name(step: int) -> str:
    """``checkpoint-N``, as transformers names it."""
    return f"{PREFIX_CHECKPOINT_DIR}-{step}"


def partial_folder(output_dir: str | Path) -> Path:
    """Where unfinished things of the run in `output_dir` lie."""
    return Path(output_dir) / PARTIAL


def seal(folder: Path, paths: Iterable[Path]) -> dict[str, int]:
    """Have these files of a checkpoint, a process's `share` of all, on disk; returns their checksums by name.

    The CRC-32 of what can be read back: 3 GB/s a process here, so 4 s for a checkpoint of 98 GB (8B parameters, AdamW,
    float32) on eight.

    Raises:
        OSError: The disk is full or fails.
    """
    checksums = {}
    for path in paths:
        _sync(path)
        checksums[str(path.relative_to(folder))] = _crc32(path)
    return checksums


def publish(
    partial: Path, output_dir: str | Path, checksums: Mapping[str, int] | None = None
) -> Path:
    """Give a checkpoint that has been written completely its name; returns the new path.

    A folder of that name (of a run that was continued from an earlier checkpoint) is replaced.

    Args:
        partial: The folder that it was written to.
        output_dir: The run's.
        checksums: What processes have sealed. The rest is sealed here: all of it, or what another did not see yet.

    Raises:
        OSError: The disk is full or fails. The checkpoints in `output_dir` are as they were.
    """
    final = Path(output_dir) / partial.name
    sizes = {str(path.relative_to(partial)): path.stat().st_size for path in _files(partial)}
    sealed = dict(checksums or {})
    sealed |= seal(partial, [partial / name for name in sizes if name not in sealed])
    marker = {"saved_ns": time.time_ns(), "files": sizes, "crc32": sealed}
    (partial / MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
    for path in [
        partial / MARKER,
        *(p for p in partial.rglob("*") if p.is_dir()),
        partial,
        partial.parent,
    ]:
        _sync(path)
    # From here on `recover` would publish it.
    discard(final)
    partial.rename(final)
    _sync(final.parent)
    return final


def recover(output_dir: str | Path) -> None:
    """Clean up after a killed process: what was complete gets its name, what was not is removed.

    Every process of a run may call it, one after the other.
    """
    folder = partial_folder(output_dir)
    if not folder.is_dir():
        return
    for path in sorted(folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*")):
        if is_complete(path) and not is_complete(Path(output_dir) / path.name):
            discard(Path(output_dir) / path.name)
            path.rename(Path(output_dir) / path.name)
    shutil.rmtree(folder, ignore_errors=True)


def damage(folder: str | Path) -> str | None:
    """What makes `folder` no whole checkpoint, as far as names and sizes tell; None when nothing does."""
    marker = _marker(Path(folder))
    if marker is None:
        return f"it has no readable {MARKER}"
    for name, size in marker["files"].items():
        path = Path(folder) / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size:,} of its {size:,} bytes"
    return None


def changed_files(folder: str | Path, rank: int = 0, ranks: int = 1) -> list[str]:
    """This process's share of the files in the complete checkpoint `folder` that are not what was written.

    A checkpoint of a version that kept no checksums counts as it is.
    """
    checksums = (_marker(Path(folder)) or {}).get("crc32", {})
    names = ((path, str(path.relative_to(folder))) for path in share(Path(folder), rank, ranks))
    return [name for path, name in names if name in checksums and _crc32(path) != checksums[name]]


def is_complete(folder: str | Path) -> bool:
    """Whether `folder` has its marker, and every file that the marker lists in its full size."""
    return damage(folder) is None


def all_checkpoints(output_dir: str | Path) -> list[Path]:
    """The checkpoint folders of a run, damaged ones too, in the order in which they were saved.

    A copy that somebody put aside under another name (``checkpoint-40-good``) is none: it would be pruned.
    """
    named = Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*")
    return sorted((path for path in named if path.name.partition("-")[2].isdecimal()), key=_saved)


def complete_checkpoints(output_dir: str | Path) -> list[Path]:
    """The complete checkpoints of a run, in the order in which they were saved."""
    return [path for path in all_checkpoints(output_dir) if is_complete(path)]


def last_checkpoint(output_dir: str | Path) -> Path | None:
    """The complete checkpoint that was saved last, or None."""
    return next(reversed(complete_checkpoints(output_dir)), None)


def prune(output_dir: str | Path, limit: int | None, keep: Collection[Path] = ()) -> None:
    """Remove the oldest complete checkpoints until at most `limit` are left.

    The last one and those in `keep` stay, whatever `limit` says. None or 0 removes nothing.
    """
    folders = complete_checkpoints(output_dir)
    if not limit or limit < 1:
        return
    kept = {folders[-1].resolve(), *(path.resolve() for path in keep)} if folders else set()
    excess = len(folders) - limit
    for folder in folders:
        if excess <= 0:
            return
        if folder.resolve() not in kept:
            discard(folder)
            excess -= 1


def discard(folder: Path) -> None:
    """Remove a checkpoint in a way that never leaves half of it under its name."""
    if folder.exists():
        doomed = partial_folder(folder.parent) / f"removed-{folder.name}"
        doomed.parent.mkdir(exist_ok=True)
        shutil.rmtree(doomed, ignore_errors=True)
        folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def move_files(source: Path, target: Path) -> None:
    """Move the files of a finished folder into `target`, each whole or not at all."""
    for path in _files(source):
        _sync(path)
        destination = target / path.relative_to(source)
        destination.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, destination)
    shutil.rmtree(source, ignore_errors=True)


def _marker(folder: Path) -> dict[str, Any] | None:
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return marker if isinstance(marker, dict) and "files" in marker else None


def _saved(folder: Path) -> int:
    marker = _marker(folder)
    return int(marker.get("saved_ns", 0)) if marker else folder.stat().st_mtime_ns


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def share(folder: Path, rank: int, ranks: int) -> list[Path]:
    """Files that one process looks after: about the same bytes for each, every file once."""
    return sorted(_files(folder), key=lambda path: path.stat().st_size, reverse=True)[rank::ranks]


def _crc32(path: Path) -> int:
    value, block = 0, memoryview(bytearray(_BLOCK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            value = zlib.crc32(block[:count], value)
    return value


def _sync(path: Path) -> None:
    """Have the operating system write `path` to the disk before it returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
