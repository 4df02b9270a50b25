"""Two gloo processes on the CPU, of which one samples for both, train as one does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.train.harness import torchrun
from tests.train.loops.asynchronous.distributed_worker import train
from tests.train.loops.asynchronous.test_async_trainer import save_model


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    model = save_model(tmp_path)
    torchrun("loops.asynchronous.distributed_worker", model, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))

    alone = train(model, tmp_path / "one", processes=1)
    for name, weight in alone["weights"].items():
        torch.testing.assert_close(first["weights"][name], weight, atol=1e-5, rtol=0)
        assert torch.equal(second["weights"][name], first["weights"][name])
    updates = [entry for entry in alone["history"] if "loss" in entry]
    assert any(entry["loss"] for entry in updates)
    for expected, found in zip(updates, first["history"], strict=False):
        assert found["em"] == expected["em"]
        for key in ("loss", "grad_norm"):
            assert found[key] == pytest.approx(expected[key], rel=1e-4, abs=1e-6)
