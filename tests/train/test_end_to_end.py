"""The real parts together: a tiny model samples episodes and is trained on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from atommem.trace import read_trace
from atommem.train.console import METRICS_FILE, read_metrics
from tests.train.harness import make_real_trainer

pytestmark = pytest.mark.slow


def test_training_logprobs_equal_sampled_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer, _ = make_real_trainer(
        tmp_path,
        max_steps=2,
        learning_rate=1e-3,
        save_traces=True,
        temperature=0.7,
        per_device_train_batch_size=24,
        num_generations=12,
    )
    trainer.train()
    trainer.close()
    logged = read_metrics(tmp_path / METRICS_FILE)
    updates = [entry for entry in logged if "loss" in entry]
    assert [entry["step"] for entry in updates] == [1, 2]
    for entry in updates:
        assert entry["sampling/sampling_logp_difference/mean"] < 1e-5
        assert 0 < entry["reward"] < 1
        assert entry["actions/create"] > 0
        assert entry["malformed"] > 0
    assert "{" not in capsys.readouterr().out  # the table replaces Hugging Face's dictionaries
    traces = sorted((tmp_path / "traces" / "step-1").iterdir())
    assert len(traces) == 24
    assert read_trace(traces[0]).complete
