"""Updates and runs under configs/accelerate/fsdp2.yaml, for test_fsdp2.py.

Usage: fsdp2_worker.py PART FOLDER, where PART is ``two`` or ``one``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig

from atommem.train.train_config import TrainConfig
from tests.train.harness import GradientRecorder, make_config, make_trainer
from tests.train.shipped.cpu_ranks import launch_as_fsdp2
from tests.train.toys import make_model, mixed_episode

KINDS = ["no", "lora_bf16"]
"""Updates: mixed precision or not, all weights or an adapter."""


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor that may be sharded. Collective."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


class WholeGradients(GradientRecorder):
    """Keeps whole gradients."""

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        named = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
        self.gradients.append({name: whole(gradient) for name, gradient in named})


def update(folder: Path, kind: str) -> dict[str, Any]:
    """Train on eight episodes in groups of four, in micro-batches of 20 tokens."""
    ranks, bf16 = int(os.environ.get("WORLD_SIZE", "1")), "bf16" in kind
    adapter = LoraConfig(r=2, target_modules=["q_proj", "gate_proj"], task_type="CAUSAL_LM")
    args: TrainConfig = make_config(
        folder / f"out-{kind}",
        per_device_train_batch_size=8 // ranks,
        beta=0.1,
        micro_batch_tokens=20,
        bf16=bf16,
    )
    args.model_init_kwargs = {"dtype": "bfloat16" if bf16 else "float32"}
    model, peft_config = str(folder / "model"), adapter if "lora" in kind else None
    trainer, _, _ = make_trainer(model, args, mixed_episode, peft_config=peft_config)
    recorder = WholeGradients()
    trainer.add_callback(recorder)
    trainer.train()
    # The reference of an adapter is the model without it.
    named = trainer.accelerator.unwrap_model(trainer.ref_model or trainer.model).named_parameters()
    return {
        "reference": {name: whole(p) for name, p in named if "lora_" not in name},
        "gradients": recorder.gradients[0],
        "log": trainer.state.log_history[0],
    }


def run(folder: Path, checkpoint: Path | None = None) -> None:
    """Train three updates on one rollout, or go on from `checkpoint`, and save the model.

    The checkpoint is in the middle of the rollout. Embeddings and head are tied.
    """
    settings = {
        "num_iterations": 3,
        "max_steps": 3,
        "save_strategy": "steps",
        "save_steps": 2,
        "learning_rate": 1e-3,
        "max_grad_norm": 1.0,
        "per_device_train_batch_size": 8 // int(os.environ.get("WORLD_SIZE", "1")),
    }
    model = make_model()
    model.config.tie_word_embeddings = True
    model.tie_weights()
    trainer, _, _ = make_trainer(model, make_config(folder, **settings), mixed_episode)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    trainer.save_final()


def main(part: str, folder: Path) -> None:
    """Do a part of the test on this rank."""
    launch_as_fsdp2()
    if part == "two":
        seen = {}
        for kind in KINDS:
            os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16" if "bf16" in kind else "no"
            seen[kind] = update(folder, kind)
        torch.save(seen, folder / f"{os.environ['RANK']}.pt")
        os.environ["ACCELERATE_MIXED_PRECISION"] = "no"
        run(folder / "whole")
        run(folder / "again", folder / "whole" / "checkpoint-2")
    else:
        run(folder / "two-to-one", folder / "whole" / "checkpoint-2")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
