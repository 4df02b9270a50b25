"""Run by test_distributed.py on gloo processes, and in part within the test.

Usage: distributed_worker.py PART FOLDER, where PART is ``ddp``, ``adapter`` (again where a run on
one process has ended), ``fsdp2`` (as configs/accelerate/fsdp2.yaml) or ``fsdp2 on one``, on which
its run goes on. What each rank found goes to FOLDER/PART-RANK.pt.
"""

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig

from atommem.episode import Episode
from atommem.train.errors import CheckpointError, MemoryFault, RolloutFailedError
from atommem.train.rollout.server_backend import AdapterBackend
from atommem.train.rollout.weight_sync import AdapterPublisher
from tests.fake_vllm import Cluster
from tests.train.harness import fail, make_config, make_trainer, whole
from tests.train.shipped.cpu_ranks import launch_as_fsdp2
from tests.train.test_async_trainer import make_trainer as make_async_trainer
from tests.train.test_backends import LORA, make_server_trainer
from tests.train.toys import make_model, mixed_episode, random_episode

RANKS = int(os.environ.get("WORLD_SIZE", "1"))


def alternating_episode(task_id: str, sample: int) -> Episode:
    return random_episode(task_id, sample, float(sample % 2))


def one_sided_episode(task_id: str, sample: int) -> Episode:
    """Only the first group differs: the second of two processes has almost nothing to do."""
    return random_episode(task_id, sample, float(sample == 0 or task_id != "t0"))


CASES: dict[str, Any] = {
    "two updates on a rollout": (alternating_episode, "trajectory", 2),
    "one-sided": (one_sided_episode, "token", 1),
}


def update(folder: Path, case: str) -> dict[str, Any]:
    """Twelve episodes in groups of four: with two processes, the second group straddles them.

    The result is that of the last update.
    """
    write, normalization, updates = CASES[case]
    size = {"per_device_train_batch_size": 12 // RANKS // updates, "token_budget": 40}
    rest = {"steps_per_generation": updates, "max_steps": updates, "normalization": normalization}
    config = make_config(folder, **size, **rest)
    trainer, recorder, runner = make_trainer(make_model(), config, write)
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
    size = {"per_device_train_batch_size": 8 // RANKS}
    with make_async_trainer(model, folder, max_staleness=0, **size) as trainer:
        trainer.train()
    weights = trainer.accelerator.unwrap_model(trainer.model).state_dict()
    updates = [entry for entry in trainer.state.log_history if "loss" in entry]
    return {"weights": weights, "updates": updates}


def train_alike(folder: Path, model: Path) -> dict[str, Any]:
    return {
        **{case: update(folder / case, case) for case in CASES},
        "asynchronous": train_asynchronously(folder / "asynchronous", model),
    }


def train_adapters(folder: Path, down: Sequence[str]) -> dict[str, Any]:
    cluster = Cluster("a", "b")
    for name in down:
        cluster[name].up = False
    make = partial(AdapterBackend, publisher=AdapterPublisher(folder / "adapters"))
    size: dict[str, Any] = {"updates": 3, "episodes": 4, "tasks": 6}
    trainer = make_server_trainer(folder, cluster, make, **size, peft_config=LORA)
    error = ""
    try:
        trainer.train()
    except RolloutFailedError as failure:
        error = str(failure)
    trainer.close()
    return {"error": error, "loads": {k: server.loads for k, server in cluster.servers.items()}}


def resume_adapter(folder: Path, checkpoint: Path | None = None) -> None:
    """Train an adapter for two updates on each of two rollouts, from the start or `checkpoint`."""
    saved = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": None}
    size = {"per_device_train_batch_size": 8 // RANKS, "steps_per_generation": 2, "max_steps": 4}
    config = make_config(folder, max_grad_norm=1.0, **saved, **size)
    trainer, _, _ = make_trainer(make_model(), config, mixed_episode, peft_config=LORA)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    trainer.save_final()


def end_early(folder: Path, problem: str) -> str:
    """Return how a run ends whose second rank has too little memory or disk in the second update.

    Memory is short before the last micro-batch.
    """
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "token_budget": 40}
    settings |= {"steps_per_generation": 2 if problem == "disk" else 1}
    config = make_config(folder, per_device_train_batch_size=12 // RANKS, **settings)
    trainer, _, _ = make_trainer(make_model(), config, alternating_episode, tasks=6)
    faults: dict[str, Any] = {
        "memory": (trainer._update, "_backward", 1, torch.OutOfMemoryError("CUDA out of memory")),
        "disk": (trainer, "save_extra_state", 2, OSError("disk full")),
    }
    if os.environ["RANK"] == "1":
        fail(trainer, *faults[problem])
    try:
        trainer.train()
    except (MemoryFault, CheckpointError) as fault:
        return str(fault)
    return ""


KINDS = ["no", "bf16", "lora_bf16"]
"""Updates under FSDP2: mixed precision or not, all weights or an adapter."""


def fsdp2_update(folder: Path, kind: str) -> dict[str, Any]:
    """Train on eight episodes in groups of four, in micro-batches of 20 tokens."""
    bf16 = "bf16" in kind
    adapter = LoraConfig(r=2, target_modules=["q_proj", "gate_proj"], task_type="CAUSAL_LM")
    size = {"per_device_train_batch_size": 8 // RANKS, "token_budget": 20}
    args = make_config(folder / f"out-{kind}", beta=0.1, bf16=bf16, **size)
    args.model_init_kwargs = {"dtype": "bfloat16" if bf16 else "float32"}
    model, peft_config = str(folder / "model"), adapter if "lora" in kind else None
    trainer, recorder, _ = make_trainer(model, args, mixed_episode, peft_config=peft_config)
    trainer.train()
    # The reference of an adapter is the model without it.
    named = trainer.accelerator.unwrap_model(trainer.reference or trainer.model).named_parameters()
    return {
        "reference": {name: whole(p) for name, p in named if "lora_" not in name},
        "loaded": recorder.states[0],
        "updated": {name: whole(p) for name, p in trainer.model.named_parameters()},
        "gradients": recorder.gradients[0],
        "log": trainer.state.log_history[0],
    }


def fsdp2_run(folder: Path, checkpoint: Path | None = None) -> None:
    """Train three updates on one rollout, or go on from `checkpoint`, and save the model.

    The checkpoint is in the middle of the rollout. Embeddings and head are tied.
    """
    settings = {"num_iterations": 3, "max_steps": 3, "save_strategy": "steps", "save_steps": 2}
    settings |= {"learning_rate": 1e-3, "max_grad_norm": 1.0}
    settings["per_device_train_batch_size"] = 8 // RANKS
    model = make_model()
    model.config.tie_word_embeddings = True
    model.tie_weights()
    trainer, _, _ = make_trainer(model, make_config(folder, **settings), mixed_episode)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    trainer.save_final()


def main(part: str, folder: Path) -> None:
    seen: dict[str, Any] = {}
    if part == "ddp":
        down = ["a", "b"] if os.environ["RANK"] == "1" else []
        seen = train_alike(folder / "two", folder / "model") | {
            "one lost": train_adapters(folder / "lost", down[:1]),
            "all lost": train_adapters(folder / "all", down),
            "memory": end_early(folder / "memory", "memory"),
            "disk": end_early(folder / "disk", "disk"),
        }
    elif part == "adapter":
        last = folder / "one" / "checkpoint-3"
        where = ("two", last) if last.is_dir() else ("whole", None)
        resume_adapter(folder / where[0], where[1])
    elif part == "fsdp2 on one":
        launch_as_fsdp2()
        fsdp2_run(folder / "one", folder / "whole" / "checkpoint-2")
    else:
        launch_as_fsdp2()
        for kind in KINDS:
            os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16" if "bf16" in kind else "no"
            seen[kind] = fsdp2_update(folder, kind)
        os.environ["ACCELERATE_MIXED_PRECISION"] = "no"
        fsdp2_run(folder / "whole")
        fsdp2_run(folder / "again", folder / "whole" / "checkpoint-2")
    torch.save(seen, folder / f"{part}-{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
