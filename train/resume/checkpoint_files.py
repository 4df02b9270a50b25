"""Checkpoint folders on disk: written aside, made durable, and only then given their name.

A checkpoint is written to ``output_dir/.partial/checkpoint-N``. Once every file of it is on disk, a marker that lists
them is added and the folder is renamed to ``output_dir/checkpoint-N``. A process that is killed at any moment
therefore leaves whole checkpoints and a ``.partial`` folder, which the next start empties.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

MARKER = "checkpoint_complete.json"
PARTIAL = ".partial"


def checkpoint_name(step: int) -> str:
    """``checkpoint-N``, as transformers names it."""
    return f"{PREFIX_CHECKPOINT_DIR}-{step}"


def partial_folder(output_dir: str | Path) -> Path:
    """Where unfinished things of the run in `output_dir` lie."""
    return Path(output_dir) / PARTIAL


def publish(partial: Path, output_dir: str | Path) -> Path:
    """Give a checkpoint that has been written completely its name; returns the new path.

    A folder of that name (of a run that was continued from an earlier checkpoint) is replaced.

    Raises:
        OSError: The disk is full or fails. The checkpoints in `output_dir` are as they were.
    """
    final = Path(output_dir) / partial.name
    files = {str(path.relative_to(partial)): path.stat().st_size for path in _files(partial)}
    marker = {"saved_ns": time.time_ns(), "files": files}
    (partial / MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
    for path in [*_files(partial), *(p for p in partial.rglob("*") if p.is_dir()), partial, partial.parent]:
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


def is_complete(folder: str | Path) -> bool:
    """Whether `folder` has its marker, and every file that the marker lists in its full size."""
    marker = _marker(Path(folder))
    try:
        return marker is not None and all(
            (Path(folder) / name).stat().st_size == size for name, size in marker["files"].items()
        )
    except OSError:
        return False


def complete_checkpoints(output_dir: str | Path) -> list[Path]:
    """The complete checkpoints of a run, in the order in which they were saved."""
    folders = [path for path in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*") if is_complete(path)]
    return sorted(folders, key=_saved)


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
    return int((_marker(folder) or {}).get("saved_ns", 0))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _sync(path: Path) -> None:
    """Have the operating system write `path` to the disk before it returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
