"""Run by test_async_distributed.py under torchrun: three asynchronous updates, each rank's weights to a file.

Usage: distributed_worker.py MODEL_FOLDER OUT_FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from tests.train.loops.asynchronous.test_async_trainer import make_trainer


def train(model: Path, out: Path, processes: int) -> dict[str, Any]:
    """Eight episodes an update, over all processes; the budget gives several micro-batches."""
    trainer = make_trainer(model, out, max_staleness=0, per_device_train_batch_size=8 // processes)
    trainer.train()
    named = trainer.accelerator.unwrap_model(trainer.model).named_parameters()
    return {"weights": {name: p.detach().clone() for name, p in named}, "history": trainer.state.log_history}


if __name__ == "__main__":
    target = Path(sys.argv[2])
    result = train(Path(sys.argv[1]), target / "two", processes=2)
    torch.save(result, target / f"{torch.distributed.get_rank()}.pt")
