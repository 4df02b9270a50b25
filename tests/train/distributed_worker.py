"""Run by test_distributed.py on two gloo processes, and in part within the test.

Usage: distributed_worker.py FOLDER MODEL; what each rank found goes to FOLDER/RANK.pt.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from atommem.episode import Episode
from atommem.train.errors import RolloutFailedError
from atommem.train.rollout.server_backend import AdapterSync
from atommem.train.rollout.weight_sync import AdapterPublisher
from tests.fake_vllm import Cluster
from tests.train.harness import make_config, make_trainer
from tests.train.test_async_trainer import make_trainer as make_async_trainer
from tests.train.test_server_backend import LORA, make_server_trainer
from tests.train.toys import make_model, mixed_episode, random_episode

RANKS = int(os.environ.get("WORLD_SIZE", "1"))


WRITERS: dict[str, Callable[[str, int], Episode]] = {
    "mixed": mixed_episode,
    "shared": lambda task_id, sample: random_episode(task_id, sample, float(sample % 2)),
    # Only the first group differs, so that the second of two processes has almost nothing to do.
    "one_sided": lambda task_id, sample: random_episode(
        task_id, sample, float(sample == 0 or task_id != "t0")
    ),
}
CASES = ["mixed-trajectory", "one_sided-token", "shared-token"]


def update(folder: Path, case: str) -> dict[str, Any]:
    """Twelve episodes in groups of four: with two processes, the second group straddles them.

    What is kept is of the last update; of "shared" there are two on one rollout.
    """
    kind, _, normalization = case.partition("-")
    updates = 2 if kind == "shared" else 1
    config = make_config(
        folder,
        per_device_train_batch_size=12 // RANKS // updates,
        steps_per_generation=updates,
        max_steps=updates,
        normalization=normalization,
        micro_batch_tokens=40,
    )
    trainer, recorder, runner = make_trainer(make_model(), config, WRITERS[kind])
    trainer.train()
    logged = trainer.state.log_history[updates - 1]
    return {
        "gradients": recorder.gradients[-1],
        "logged": {key: value for key, value in logged.items() if not key.startswith("seconds")},
        "jobs": runner.jobs,
        "weights": dict(trainer.model.state_dict()),
    }


def train_asynchronously(folder: Path, model: Path) -> dict[str, Any]:
    """Three updates of eight episodes; the budget gives several micro-batches."""
    trainer = make_async_trainer(
        model, folder, max_staleness=0, per_device_train_batch_size=8 // RANKS
    )
    trainer.train()
    weights = trainer.accelerator.unwrap_model(trainer.model).state_dict()
    updates = [entry for entry in trainer.state.log_history if "loss" in entry]
    return {"weights": weights, "updates": updates}


def train_replacing(folder: Path) -> dict[str, Any]:
    """Two updates of four groups, of which some are replaced; the tasks that this rank ran."""
    config = make_config(
        folder, max_steps=2, per_device_train_batch_size=16 // RANKS, dynamic_sampling=2
    )
    trainer, _, runner = make_trainer(make_model(), config, mixed_episode, tasks=24)
    trainer.train()
    updates = [entry for entry in trainer.state.log_history if "reward" in entry]
    logged = [entry["dynamic_sampling/replaced_groups"] for entry in updates]
    return {"jobs": runner.jobs, "replaced": logged}


def train_alike(folder: Path, model: Path) -> dict[str, Any]:
    """Return results that are the same on any number of processes."""
    return {
        **{case: update(folder / case, case) for case in CASES},
        "asynchronous": train_asynchronously(folder / "asynchronous", model),
        "replacing": train_replacing(folder / "replacing"),
    }


def train_adapters(folder: Path, down: Sequence[str]) -> dict[str, Any]:
    """Train an adapter for three updates on servers a and b, without those in `down`."""
    cluster = Cluster("a", "b")
    for name in down:
        cluster[name].up = False
    sync = AdapterSync(AdapterPublisher(folder / "adapters"))
    trainer = make_server_trainer(
        folder, cluster, sync, updates=3, episodes=4, tasks=6, peft_config=LORA
    )
    error = ""
    try:
        trainer.train()
    except RolloutFailedError as failure:
        error = str(failure)
    trainer.close()
    return {"error": error, "loads": {k: server.loads for k, server in cluster.servers.items()}}


def main(folder: Path, model: Path) -> None:
    rank = int(os.environ["RANK"])
    seen = train_alike(folder / "two", model) | {
        "one lost": train_adapters(folder / "lost", ["a"] if rank else []),
        "all lost": train_adapters(folder / "all", ["a", "b"] if rank else []),
    }
    torch.save(seen, folder / f"{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
