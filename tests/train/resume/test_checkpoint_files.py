"""Checkpoint folders are whole or absent, at whatever moment the process dies."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from atommem.train.resume import checkpoint_files
from atommem.train.resume.checkpoint_files import (
    MARKER,
    changed_files,
    checkpoint_name,
    complete_checkpoints,
    is_complete,
    last_checkpoint,
    move_files,
    partial_folder,
    prune,
    publish,
    recover,
    seal,
    share,
)


def write(folder: Path, step: int, text: str = "weights") -> Path:
    partial = partial_folder(folder) / checkpoint_name(step)
    (partial / "inner").mkdir(parents=True)
    (partial / "model.bin").write_text(text)
    (partial / "inner" / "shard").write_text(f"{text} {step}")
    return partial


def save(folder: Path, step: int, text: str = "weights") -> Path:
    return publish(write(folder, step, text), folder)


def names(folder: Path) -> list[str]:
    return [path.name for path in complete_checkpoints(folder)]


def test_processes_share_the_files_and_what_none_saw_is_sealed_in_the_end(tmp_path: Path) -> None:
    partial = write(tmp_path, 3)
    (partial / "late").write_text("of another node")
    shares = [seal(partial, share(partial, rank, 2)) for rank in range(2)]
    assert shares[0].keys() | shares[1].keys() == {"model.bin", "inner/shard", "late"}
    assert not shares[0].keys() & shares[1].keys()
    (partial / "later").write_text("not there yet when they looked")
    saved = publish(partial, tmp_path, shares[0] | shares[1])
    assert json.loads((saved / MARKER).read_text())["crc32"].keys() == {
        "model.bin",
        "inner/shard",
        "late",
        "later",
    }
    assert [changed_files(saved, rank, 2) for rank in range(2)] == [[], []]
    # A checkpoint of a version without checksums counts as it is.
    marker = json.loads((saved / MARKER).read_text())
    del marker["crc32"]
    (saved / MARKER).write_text(json.dumps(marker))
    assert is_complete(saved)
    assert changed_files(saved) == []


def test_the_last_one_is_the_one_saved_last(tmp_path: Path) -> None:
    """Not the highest number: a run may have been continued from an earlier checkpoint."""
    for step in (10, 20, 15):
        save(tmp_path, step)
    assert names(tmp_path) == ["checkpoint-10", "checkpoint-20", "checkpoint-15"]
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-15"


def test_pruning_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step)
    prune(tmp_path, None)
    assert len(names(tmp_path)) == 4
    for limit in (2, 1):
        prune(tmp_path, limit, keep=[tmp_path / "checkpoint-1"])
        assert names(tmp_path) == ["checkpoint-1", "checkpoint-4"]
    prune(tmp_path, 1)
    assert names(tmp_path) == ["checkpoint-4"]


def test_a_copy_under_another_name_is_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 4)
    shutil.copytree(tmp_path / "checkpoint-4", tmp_path / "checkpoint-4-good")
    save(tmp_path, 5)
    assert names(tmp_path) == ["checkpoint-4", "checkpoint-5"]
    prune(tmp_path, 1)
    assert (tmp_path / "checkpoint-4-good").is_dir()


class Killed(BaseException):
    """As if the process ended here."""


@pytest.mark.parametrize("operation", ["fsync", "rename", "rmtree", "write_text"])
@pytest.mark.parametrize("call", range(12))
def test_killed_at_any_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, call: int
) -> None:
    """Old and new checkpoint of the same step, and another one that is pruned: nothing but whole ones is left."""
    save(tmp_path, 1, "old")
    save(tmp_path, 3, "old")
    write(tmp_path, 3, "new")
    calls = 0
    owner = {"fsync": os, "rename": Path, "rmtree": checkpoint_files.shutil, "write_text": Path}[
        operation
    ]
    real = getattr(owner, operation)

    def dying(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls == call + 1:
            raise Killed
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, operation, dying)
    try:
        publish(partial_folder(tmp_path) / "checkpoint-3", tmp_path)
        prune(tmp_path, 1)
    except Killed:
        pass
    monkeypatch.undo()
    recover(tmp_path)
    assert not partial_folder(tmp_path).exists()
    left = names(tmp_path)
    assert sorted(left) == sorted(path.name for path in tmp_path.iterdir())
    assert left in (["checkpoint-1", "checkpoint-3"], ["checkpoint-3"])
    text = (tmp_path / "checkpoint-3" / "model.bin").read_text()
    assert (tmp_path / "checkpoint-3" / "inner" / "shard").read_text() == f"{text} 3"
    if left == ["checkpoint-3"]:
        assert text == "new"


def test_files_are_moved_into_a_folder_that_has_others(tmp_path: Path) -> None:
    source = write(tmp_path, 3)
    (tmp_path / "model.bin").write_text("old")
    (tmp_path / "other").write_text("stays")
    move_files(source, tmp_path)
    assert (tmp_path / "model.bin").read_text() == "weights"
    assert (tmp_path / "inner" / "shard").is_file()
    assert (tmp_path / "other").read_text() == "stays"
    assert not source.exists()
