"""The cold start: the loss is on completions only, falls, and is TRL's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from atommem.errors import ConfigError
from atommem.train.checkpoints import last_checkpoint
from atommem.train.errors import TrainingInterrupted
from atommem.train.logs.console import METRICS_FILE, SFT_COLUMNS, read_metrics, use_console
from atommem.train.loops.sft import ColdStartTrainer, sft_dataset
from atommem.train.train_config import ColdStartConfig
from tests.train.harness import BARE, at, completion_logps, terminate
from tests.train.toys import EOS, make_model, make_tokenizer

ROWS = [([1, 2, 3], [7, 8, EOS]), ([4, 5], [9, EOS]), ([6, 1, 2, 3, 4], [7, EOS])] * 8


def make_config(folder: Path, **settings: Any) -> ColdStartConfig:
    defaults = {"max_steps": 30, "logging_steps": 1}
    return ColdStartConfig(str(folder), **{**BARE, **defaults, **settings})


def test_sft_dataset_refuses_no_rows_and_long_rows() -> None:
    with pytest.raises(ConfigError, match="no demonstrations"):
        sft_dataset([])
    with pytest.raises(
        ConfigError, match=r"max_length=4: 16 of 24 demonstrations are longer \(up to 7"
    ):
        sft_dataset(ROWS, max_length=4)


def test_cold_start_loss_is_on_completions_and_falls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model()
    batch = ROWS[:24]
    with torch.no_grad():
        logps = torch.cat(
            [completion_logps(model, prompt, completion, 1.0) for prompt, completion in batch]
        )
    config = make_config(tmp_path, per_device_train_batch_size=24)
    trainer = ColdStartTrainer(model, config, sft_dataset(batch), make_tokenizer())
    use_console(trainer, SFT_COLUMNS)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[0] == pytest.approx(-logps.mean().item(), rel=1e-4)
    assert losses[-1] < 0.2 * losses[0]
    assert [
        entry["step"] for entry in read_metrics(tmp_path / METRICS_FILE) if "loss" in entry
    ] == list(range(1, 31))
    assert "accuracy" in capsys.readouterr().out


def test_cold_start_stopped_by_sigterm_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Three updates are an epoch: the second one is under way, and its order has to be kept."""
    settings = {"max_steps": 5, "save_strategy": "steps", "save_steps": 100}

    def run(folder: Path, resume: Path | None = None, **kwargs: Any) -> Any:
        trainer = ColdStartTrainer(
            make_model(),
            make_config(folder, **settings),
            sft_dataset(ROWS),
            make_tokenizer(),
            **kwargs,
        )
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
        return trainer.model.state_dict()

    expected = run(tmp_path / "whole")
    with pytest.raises(TrainingInterrupted, match="stopped before update 5"):
        run(tmp_path / "parts", callbacks=[at("on_step_end", 4, terminate)])
    last = last_checkpoint(tmp_path / "parts")
    assert last == tmp_path / "parts" / "checkpoint-4"
    resumed = run(tmp_path / "parts", last)
    assert all(torch.equal(resumed[name], expected[name]) for name in expected)
