"""Updates and runs under configs/accelerate/fsdp2.yaml, for test_fsdp2.py.

Usage: fsdp2_worker.py PART FOLDER, where PART is one of ``two``, ``one`` and ``resume``
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

KINDS = ["no", "bf16", "lora", "lora_bf16"]
"""Updates: mixed precision or not, all weights or an adapter."""
FORMS = ("whole", "tied", "adapter")
"""Runs with checkpoints."""


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor that may be sharded. Collective."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def unsharded_gradients(model: Any) -> list[torch.Tensor]:
    """The gradients of whole parameters that this rank still holds."""
    states = [
        module._get_fsdp_state() for module in model.modules() if hasattr(module, "_get_fsdp_state")
    ]
    sharded = [
        one
        for state in set(states)
        for group in state._fsdp_param_groups
        for one in group.fsdp_params
    ]
    kept = [one.unsharded_accumulated_grad for one in sharded]
    kept += [one._unsharded_param.grad for one in sharded if hasattr(one, "_unsharded_param")]
    return [gradient for gradient in kept if gradient is not None]


class ShardWatch(GradientRecorder):
    """Keeps whole gradients, and size and dtypes of this rank's part."""

    held = 0
    dtypes: frozenset[torch.dtype] = frozenset()

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        named = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
        local = [grad.to_local() if hasattr(grad, "to_local") else grad for _, grad in named]
        self.held, self.dtypes = (
            sum(grad.numel() for grad in local),
            frozenset(grad.dtype for grad in local),
        )
        self.gradients.append({name: whole(grad) for name, grad in named})


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
    watch = ShardWatch()
    trainer.add_callback(watch)
    unsharded: list[int] = []
    backward = trainer.accelerator.backward

    def watched(loss: torch.Tensor, **arguments: Any) -> None:
        backward(loss, **arguments)
        unsharded.append(sum(gradient.numel() for gradient in unsharded_gradients(trainer.model)))

    trainer.accelerator.backward = watched
    dtypes: set[torch.dtype] = set()
    objective = trainer._update.loss

    def seen(logps: torch.Tensor, *arguments: Any) -> Any:
        dtypes.update(t.dtype for t in (logps, arguments[-1]))
        return objective(logps, *arguments)

    object.__setattr__(seen, "beta", objective.beta)
    trainer._update.loss = seen
    trainer.train()
    # The reference of an adapter is the model without it.
    named = trainer.accelerator.unwrap_model(trainer.ref_model or trainer.model).named_parameters()
    reference = [(name, p) for name, p in named if "lora_" not in name]
    return {
        "reference": {name: whole(p) for name, p in reference},
        "reference_dtypes": {p.dtype for _, p in reference},
        "gradients": watch.gradients[0],
        "held": watch.held,
        "gradient_dtypes": watch.dtypes,
        "logps_dtypes": dtypes,
        "unsharded": unsharded,
        "log": trainer.state.log_history[0],
    }


def make(folder: Path, form: str, **settings: Any) -> Any:
    """A trainer of three updates of eight episodes, with a checkpoint after the second.

    Those of the form ``tied`` are all on one rollout, in the middle of which the checkpoint is.
    """
    defaults = {
        "num_iterations": 3 if form == "tied" else 1,
        "max_steps": 3,
        "save_strategy": "steps",
        "save_steps": 2,
        "learning_rate": 1e-3,
        "max_grad_norm": 1.0,
        "per_device_train_batch_size": 8 // int(os.environ.get("WORLD_SIZE", "1")),
    }
    model = make_model()
    if form == "tied":
        model.config.tie_word_embeddings = True
        model.tie_weights()
    adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj"]) if form == "adapter" else None
    return make_trainer(
        model, make_config(folder, **{**defaults, **settings}), mixed_episode, peft_config=adapter
    )[0]


def run(folder: Path, form: str, checkpoint: Path | None = None) -> None:
    """Train, or go on from `checkpoint`, and save the model to `folder`."""
    trainer = make(folder, form)
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
        for form in FORMS:
            run(folder / form, form)
            run(folder / f"{form}-again", form, folder / form / "checkpoint-2")
    elif part == "one":
        run(folder / "one", "whole")
        run(folder / "two-to-one", "whole", folder / "whole" / "checkpoint-2")
    else:
        run(folder / "one-to-two", "whole", folder / "one" / "checkpoint-2")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
