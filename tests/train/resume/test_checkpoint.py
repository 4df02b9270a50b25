"""Which checkpoint a run continues from, and with which settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atommem.config import MemoryConfig, save_config
from atommem.errors import ConfigError
from atommem.train.resume import checkpoint
from atommem.train.resume.checkpoint import TRAINING_ARGS
from atommem.train.resume.checkpoint_files import MARKER, checkpoint_name, partial_folder, publish
from atommem.train.resume.faults import CheckpointError
from tests.train.harness import make_config

RELEASED = MemoryConfig(dialect="released")


def resume_folder(choice: str | None, output_dir: str, memory: MemoryConfig, **settings: Any) -> str | None:
    return checkpoint.resume_folder(make_config(output_dir, resume_from_checkpoint=choice, **settings), memory)


def make_checkpoints(folder: Path) -> None:
    for step in (2, 10):
        partial = partial_folder(folder) / checkpoint_name(step)
        partial.mkdir(parents=True)
        save_config(partial, RELEASED)
        (partial / "optimizer.pt").write_bytes(b"moments" * 100)
        publish(partial, folder)


def test_fresh_start(tmp_path: Path) -> None:
    assert resume_folder(None, str(tmp_path / "out"), MemoryConfig()) is None
    assert resume_folder("false", str(tmp_path / "out"), MemoryConfig()) is None


def test_auto_starts_afresh_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert resume_folder("auto", str(tmp_path), MemoryConfig()) is None
    assert "holds no checkpoint: the run starts afresh" in capsys.readouterr().out


def test_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        resume_folder("true", str(tmp_path), MemoryConfig())
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        resume_folder("true", str(tmp_path / "nowhere"), MemoryConfig())
    with pytest.raises(ConfigError, match="no such folder"):
        resume_folder(str(tmp_path / "nowhere"), str(tmp_path), MemoryConfig())


def damage(folder: Path, how: str) -> str:
    """Damage a checkpoint; returns what has to be said of it."""
    file = folder / "optimizer.pt"
    if how == "truncated":
        file.write_bytes(file.read_bytes()[:100])
        return "optimizer.pt has 100 of its 700 bytes"
    if how == "missing":
        file.unlink()
        return "optimizer.pt is missing"
    if how == "flipped":
        whole = bytearray(file.read_bytes())
        whole[350] ^= 1
        file.write_bytes(whole)
        return "the contents of optimizer.pt are not what was written"
    if how == "marker":
        (folder / MARKER).unlink()
    else:
        (folder / MARKER).write_text("{")
    return "it has no readable checkpoint_complete.json"


DAMAGES = ["truncated", "missing", "flipped", "marker", "garbage"]


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("choice", ["auto", "true"])
def test_a_damaged_last_checkpoint_stops_the_run_and_a_whole_one_is_offered(
    tmp_path: Path, how: str, choice: str
) -> None:
    make_checkpoints(tmp_path)
    what = damage(tmp_path / "checkpoint-10", how)
    older = tmp_path / "checkpoint-2"
    with pytest.raises(CheckpointError, match=rf"checkpoint-10 is damaged: {what}.*--resume_from_checkpoint {older}"):
        resume_folder(choice, str(tmp_path), RELEASED)
    assert resume_folder(str(older), str(tmp_path), RELEASED) == str(older)


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_only_checkpoint_is_never_trained_over(tmp_path: Path, how: str) -> None:
    """Neither with --resume nor without it, nor with its name."""
    make_checkpoints(tmp_path)
    what = damage(tmp_path / "checkpoint-2", how)
    damage(tmp_path / "checkpoint-10", "flipped")
    (tmp_path / "checkpoint-10").rename(tmp_path / "elsewhere")
    for choice in ("auto", str(tmp_path / "checkpoint-2")):
        with pytest.raises(CheckpointError, match=rf"checkpoint-2 is damaged: {what}.*no whole one beside it"):
            resume_folder(choice, str(tmp_path), RELEASED)
    with pytest.raises(ConfigError, match="holds checkpoint-2 of an earlier run"):
        resume_folder(None, str(tmp_path), RELEASED)


def test_a_damaged_older_checkpoint_is_in_nobodys_way(tmp_path: Path) -> None:
    make_checkpoints(tmp_path)
    damage(tmp_path / "checkpoint-2", "truncated")
    assert resume_folder("auto", str(tmp_path), RELEASED) == str(tmp_path / "checkpoint-10")


def test_other_numbers_of_episodes_an_update_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two processes, continued on one: task order and seeds go by the update."""
    partial = partial_folder(tmp_path) / checkpoint_name(3)
    partial.mkdir(parents=True)
    settings = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "world_size": 2}
    (partial / TRAINING_ARGS).write_text(json.dumps(settings))
    publish(partial, tmp_path)
    with pytest.raises(ConfigError, match=r"has 16 examples .*8 on 2 processes\), this run's 8: .* = 16"):
        resume_folder("auto", str(tmp_path), MemoryConfig(), per_device_train_batch_size=8)
    assert resume_folder("auto", str(tmp_path), MemoryConfig(), per_device_train_batch_size=16)
    assert "written by 2 processes: on 1, tasks and sampling go on" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["num_generations", "steps_per_generation", "num_iterations"])
def test_other_groups_or_updates_of_a_rollout_are_refused(tmp_path: Path, name: str) -> None:
    """Which tasks an update is about follows from its number and these."""
    partial = partial_folder(tmp_path) / checkpoint_name(3)
    partial.mkdir(parents=True)
    (partial / TRAINING_ARGS).write_text(json.dumps(make_config(tmp_path).to_dict() | {"world_size": 1}))
    publish(partial, tmp_path)
    assert resume_folder("auto", str(tmp_path), MemoryConfig())
    with pytest.raises(ConfigError, match=f"trained with {name} [14], this run has 2: its updates would be of other"):
        resume_folder("auto", str(tmp_path), MemoryConfig(), **{name: 2})


def test_another_memory_is_refused(tmp_path: Path) -> None:
    make_checkpoints(tmp_path)
    with pytest.raises(ConfigError, match="trained with dialect 'released', this run has 'paper'"):
        resume_folder("true", str(tmp_path), MemoryConfig())
