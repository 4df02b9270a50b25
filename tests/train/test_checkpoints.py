"""Checkpoint folders, and which one a run continues from."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from atommem.config import MemoryConfig, save_config
from atommem.errors import ConfigError
from atommem.train import checkpoints
from atommem.train.checkpoints import PARTIAL, TRAINING_ARGS
from atommem.train.errors import CheckpointError
from tests.train.harness import make_config

RELEASED = MemoryConfig(dialect="released")


def to_resume(choice: str | None, output_dir: Path, **settings: object) -> str | None:
    config = make_config(output_dir, resume_from_checkpoint=choice, **settings)
    return checkpoints.checkpoint_to_resume(config, RELEASED)


def write_partial(folder: Path, step: int, **settings: object) -> Path:
    partial = folder / PARTIAL / f"checkpoint-{step}"
    partial.mkdir(parents=True)
    save_config(partial, RELEASED)
    (partial / "optimizer.pt").write_bytes(b"moments" * 100)
    (partial / TRAINING_ARGS).write_text(json.dumps(settings))
    return partial


def save_checkpoint(folder: Path, step: int, **settings: object) -> Path:
    return checkpoints.publish_checkpoint(write_partial(folder, step, **settings), folder)


def test_checkpoint_to_resume_without_one_is_none(tmp_path: Path) -> None:
    for choice in (None, "false", "auto", "true"):
        assert to_resume(choice, tmp_path) is None
    with pytest.raises(ConfigError, match="no such folder"):
        to_resume(str(tmp_path / "nowhere"), tmp_path)


def test_checkpoint_to_resume_names_the_damage_and_a_complete_one(tmp_path: Path) -> None:
    older, last = save_checkpoint(tmp_path, 10), save_checkpoint(tmp_path, 2)
    assert to_resume("auto", tmp_path) == str(last)
    with pytest.raises(ConfigError, match="it holds checkpoint-2 of an earlier run"):
        to_resume(None, tmp_path)
    os.truncate(last / "optimizer.pt", 100)
    damage = r"checkpoint-2 is damaged: optimizer\.pt has 100 of its 700"
    for choice in ("auto", str(last)):
        message = rf"{damage}.*--resume_from_checkpoint {older} continues"
        with pytest.raises(CheckpointError, match=message):
            to_resume(choice, tmp_path)
    assert to_resume(str(older), tmp_path) == str(older)


def test_checkpoint_to_resume_with_other_prompts_or_updates_is_refused(tmp_path: Path) -> None:
    """Tasks and seeds follow from the number of the update."""
    save_checkpoint(tmp_path, 3, **checkpoints.training_facts(make_config(tmp_path)))
    assert to_resume("auto", tmp_path)
    with pytest.raises(ConfigError, match=r"episodes_per_update=16: .* was trained with 8"):
        to_resume("auto", tmp_path, per_device_train_batch_size=16)
    config = make_config(tmp_path, resume_from_checkpoint="true")
    with pytest.raises(ConfigError, match=r"dialect='paper'.*trained with 'released'"):
        checkpoints.checkpoint_to_resume(config, MemoryConfig())


def test_clean_up_publishes_complete_checkpoints_and_removes_the_rest(tmp_path: Path) -> None:
    complete = save_checkpoint(tmp_path, 2)
    (tmp_path / PARTIAL).mkdir(exist_ok=True)
    complete.rename(tmp_path / PARTIAL / complete.name)  # killed between manifest and rename
    write_partial(tmp_path, 4)  # killed before the manifest
    checkpoints.clean_up(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]


def test_prune_checkpoints_keeps_the_last_the_best_and_renamed_copies(tmp_path: Path) -> None:
    best, *_ = [save_checkpoint(tmp_path, step) for step in (2, 4, 6, 8)]
    (tmp_path / "checkpoint-4-good").mkdir()
    checkpoints.prune_checkpoints(tmp_path, 2, str(best))
    names = [path.name for path in checkpoints.list_checkpoints(tmp_path)]
    assert names == ["checkpoint-2", "checkpoint-8"]
    assert (tmp_path / "checkpoint-4-good").is_dir()
