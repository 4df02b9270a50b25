"""Which checkpoint a run continues from, and with which settings."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
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


def resume_folder(
    choice: str | None, output_dir: str, memory: MemoryConfig, **settings: Any
) -> str | None:
    return checkpoint.resume_folder(
        make_config(output_dir, resume_from_checkpoint=choice, **settings), memory
    )


def save_checkpoint(folder: Path, step: int, **settings: Any) -> None:
    partial = partial_folder(folder) / checkpoint_name(step)
    partial.mkdir(parents=True)
    save_config(partial, RELEASED)
    (partial / "optimizer.pt").write_bytes(b"moments" * 100)
    (partial / TRAINING_ARGS).write_text(json.dumps(settings))
    publish(partial, folder)


def make_checkpoints(folder: Path) -> None:
    for step in (2, 10):
        save_checkpoint(folder, step)


def test_without_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for choice in (None, "false", "auto"):
        assert resume_folder(choice, str(tmp_path), MemoryConfig()) is None
    assert capsys.readouterr().out.count("holds no checkpoint: the run starts afresh") == 1
    for out in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match="holds no checkpoint"):
            resume_folder("true", str(out), MemoryConfig())
    with pytest.raises(ConfigError, match="no such folder"):
        resume_folder(str(tmp_path / "nowhere"), str(tmp_path), MemoryConfig())


def test_another_memory_is_refused(tmp_path: Path) -> None:
    make_checkpoints(tmp_path)
    with pytest.raises(ConfigError, match="trained with dialect 'released', this run has 'paper'"):
        resume_folder("true", str(tmp_path), MemoryConfig())


def flip(folder: Path) -> None:
    """Flip a bit of the optimizer's state, or flip it back."""
    whole = bytearray((folder / "optimizer.pt").read_bytes())
    whole[350] ^= 1
    (folder / "optimizer.pt").write_bytes(whole)


UNMARKED = "it has no readable checkpoint_complete.json"


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (
            lambda folder: os.truncate(folder / "optimizer.pt", 100),
            "optimizer.pt has 100 of its 700 bytes",
        ),
        (lambda folder: (folder / "optimizer.pt").unlink(), "optimizer.pt is missing"),
        (flip, "the contents of optimizer.pt are not what was written"),
        (lambda folder: (folder / MARKER).unlink(), UNMARKED),
        (lambda folder: (folder / MARKER).write_text("{"), UNMARKED),
    ],
    ids=["truncated", "missing", "flipped", "marker", "garbage"],
)
def test_a_damaged_checkpoint_is_never_trained_over(
    tmp_path: Path, damage: Callable[[Path], Any], what: str
) -> None:
    """A whole one beside it is offered; without one the run neither goes on nor begins."""
    make_checkpoints(tmp_path)
    older, last = tmp_path / "checkpoint-2", tmp_path / "checkpoint-10"
    flip(older)
    assert resume_folder("auto", str(tmp_path), RELEASED) == str(
        last
    )  # an older one is in nobody's way
    flip(older)  # back
    damage(last)
    for choice in ("auto", "true", str(last)):
        with pytest.raises(
            CheckpointError, match=rf"-10 is damaged: {what}.*--resume_from_checkpoint {older}"
        ):
            resume_folder(choice, str(tmp_path), RELEASED)
    assert resume_folder(str(older), str(tmp_path), RELEASED) == str(older)
    (older / "optimizer.pt").unlink()
    for choice in ("auto", str(last)):
        with pytest.raises(
            CheckpointError, match=rf"-10 is damaged: {what}.*no whole one beside it"
        ):
            resume_folder(choice, str(tmp_path), RELEASED)
    with pytest.raises(ConfigError, match="holds checkpoint-10 of an earlier run"):
        resume_folder(None, str(tmp_path), RELEASED)


def test_other_numbers_of_episodes_an_update_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two processes, continued on one: task order and seeds go by the update."""
    save_checkpoint(
        tmp_path, 3, per_device_train_batch_size=8, gradient_accumulation_steps=1, world_size=2
    )
    with pytest.raises(
        ConfigError, match=r"has 16 examples .*8 on 2 processes\), this run's 8: .* = 16"
    ):
        resume_folder("auto", str(tmp_path), RELEASED, per_device_train_batch_size=8)
    assert resume_folder("auto", str(tmp_path), RELEASED, per_device_train_batch_size=16)
    assert "written by 2 processes: on 1, tasks and sampling go on" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["num_generations", "steps_per_generation", "num_iterations"])
def test_other_groups_or_updates_of_a_rollout_are_refused(tmp_path: Path, name: str) -> None:
    """Which tasks an update is about follows from its number and these."""
    save_checkpoint(tmp_path, 3, **make_config(tmp_path).to_dict() | {"world_size": 1})
    assert resume_folder("auto", str(tmp_path), RELEASED)
    with pytest.raises(
        ConfigError,
        match=f"trained with {name} [14], this run has 2: its updates would be of other",
    ):
        resume_folder("auto", str(tmp_path), RELEASED, **{name: 2})
