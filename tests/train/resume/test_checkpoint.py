"""Which checkpoint a run continues from, and with which settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from atommem.config import MemoryConfig, save_config
from atommem.errors import ConfigError
from atommem.train.resume.checkpoint import resume_folder
from atommem.train.resume.checkpoint_files import checkpoint_name, partial_folder, publish

RELEASED = MemoryConfig(dialect="released")


def make_checkpoints(folder: Path) -> None:
    for step in (2, 10):
        partial = partial_folder(folder) / checkpoint_name(step)
        partial.mkdir(parents=True)
        save_config(partial, RELEASED)
        publish(partial, folder)


def test_fresh_start(tmp_path: Path) -> None:
    assert resume_folder(None, str(tmp_path / "out"), MemoryConfig()) is None
    assert resume_folder("false", str(tmp_path / "out"), MemoryConfig()) is None


@pytest.mark.parametrize("choice", ["True", "auto"])
def test_the_last_checkpoint(tmp_path: Path, choice: str) -> None:
    make_checkpoints(tmp_path)
    assert resume_folder(choice, str(tmp_path), RELEASED) == str(tmp_path / "checkpoint-10")


def test_auto_starts_afresh_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert resume_folder("auto", str(tmp_path), MemoryConfig()) is None
    assert "holds no complete checkpoint: the run starts afresh" in capsys.readouterr().out


def test_a_named_checkpoint(tmp_path: Path) -> None:
    make_checkpoints(tmp_path)
    named = str(tmp_path / "checkpoint-2")
    assert resume_folder(named, str(tmp_path / "elsewhere"), RELEASED) == named


def test_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no complete checkpoint"):
        resume_folder("true", str(tmp_path), MemoryConfig())
    with pytest.raises(ConfigError, match="holds no complete checkpoint"):
        resume_folder("true", str(tmp_path / "nowhere"), MemoryConfig())
    with pytest.raises(ConfigError, match="no such folder"):
        resume_folder(str(tmp_path / "nowhere"), str(tmp_path), MemoryConfig())


def test_a_part_of_a_checkpoint_is_never_taken(tmp_path: Path) -> None:
    make_checkpoints(tmp_path)
    (tmp_path / "checkpoint-10" / "atommem_config.json").unlink()
    assert resume_folder("auto", str(tmp_path), RELEASED) == str(tmp_path / "checkpoint-2")
    with pytest.raises(ConfigError, match="it is not complete"):
        resume_folder(str(tmp_path / "checkpoint-10"), str(tmp_path), RELEASED)


def test_a_fresh_run_does_not_mix_with_an_earlier_one(tmp_path: Path) -> None:
    make_checkpoints(tmp_path)
    with pytest.raises(ConfigError, match="holds checkpoint-10 of an earlier run: --resume continues it"):
        resume_folder(None, str(tmp_path), RELEASED)


def test_another_memory_is_refused(tmp_path: Path) -> None:
    make_checkpoints(tmp_path)
    with pytest.raises(ConfigError, match="trained with dialect 'released', this run has 'paper'"):
        resume_folder("true", str(tmp_path), MemoryConfig())
