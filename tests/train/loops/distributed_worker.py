"""Run by test_distributed.py under torchrun, or alone: one update of the trainer, its gradients to a file.

Usage: distributed_worker.py CASE FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from atommem.episode import Episode
from atommem.train.loops.update_step import Batch
from tests.train.harness import make_config, make_trainer
from tests.train.toys import make_model, mixed_episode, random_episode

EPISODES = 12
GROUP = 4


def one_sided(task_id: str, sample: int) -> Episode:
    """Only the first group differs, so that the second of two processes has almost nothing to do."""
    return random_episode(task_id, sample, float(sample == 0) if task_id == "t0" else 1.0)


def varied(task_id: str, sample: int) -> Episode:
    """All groups have variance."""
    return random_episode(task_id, sample, float(sample % 2))


def equal(task_id: str, sample: int) -> Episode:
    """No group has variance."""
    return random_episode(task_id, sample, 1.0)


CASES = {"mixed": mixed_episode, "shared": varied, "one_sided": one_sided, "equal": equal}


def main(case: str, folder: Path) -> None:
    """Twelve episodes in groups of four: with two processes, the second group straddles them.

    What is kept is of the last update; of "shared" there are two on one rollout.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    kind, _, normalization = case.partition("-")
    updates = 2 if kind == "shared" else 1
    config = make_config(
        folder,
        per_device_train_batch_size=EPISODES // processes // updates,
        steps_per_generation=updates,
        max_steps=updates,
        num_generations=GROUP,
        normalization=normalization,
        micro_batch_tokens=40,
    )
    trainer, recorder, runner = make_trainer(make_model(), config, CASES[kind])
    rows: list[int] = []
    run = trainer._update.run

    def counting(model: Any, batch: Batch) -> Any:
        rows.append(len(batch.rows))
        return run(model, batch)

    trainer._update.run = counting  # type: ignore[method-assign]
    trainer.train()
    logged = {
        key: value for key, value in trainer.state.log_history[updates - 1].items() if not key.startswith("seconds")
    }
    rank = trainer.accelerator.process_index
    weights = dict(trainer.model.state_dict())
    torch.save(
        {
            "gradients": recorder.gradients[-1],
            "logged": logged,
            "rows": rows[-1],
            "jobs": runner.jobs,
            "weights": weights,
        },
        folder / f"{case}-{processes}-{rank}.pt",
    )


if __name__ == "__main__":
    for name in sys.argv[1].split(","):
        main(name, Path(sys.argv[2]))
