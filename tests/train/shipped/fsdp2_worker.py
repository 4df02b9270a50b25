"""Run by test_fsdp2.py under torchrun, or alone: one update with a KL term under configs/accelerate/fsdp2.yaml.

Usage: fsdp2_worker.py FOLDER no|bf16|lora|lora_bf16: mixed precision in bf16 or not, all weights or an adapter.
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
from tests.train.toys import mixed_episode


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor that may be sharded. Collective."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def unsharded_gradients(model: Any) -> list[torch.Tensor]:
    """The gradients of whole parameters that this rank still holds."""
    states = [module._get_fsdp_state() for module in model.modules() if hasattr(module, "_get_fsdp_state")]
    sharded = [one for state in set(states) for group in state._fsdp_param_groups for one in group.fsdp_params]
    kept = [one.unsharded_accumulated_grad for one in sharded]
    kept += [one._unsharded_param.grad for one in sharded if hasattr(one, "_unsharded_param")]
    return [gradient for gradient in kept if gradient is not None]


class ShardWatch(GradientRecorder):
    """Keeps whole gradients, and how much of them, in which dtype, this rank holds before the optimizer's step."""

    held = 0
    dtypes: frozenset[torch.dtype] = frozenset()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        named = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
        local = [grad.to_local() if hasattr(grad, "to_local") else grad for _, grad in named]
        self.held, self.dtypes = sum(grad.numel() for grad in local), frozenset(grad.dtype for grad in local)
        self.gradients.append({name: whole(grad) for name, grad in named})


def main(folder: Path, kind: str) -> None:
    """Eight episodes in groups of four, micro-batches of 20 tokens; what came of it goes to a file of this rank's."""
    ranks, mixed_precision = int(os.environ.get("WORLD_SIZE", "1")), "bf16" if "bf16" in kind else "no"
    adapter = LoraConfig(r=2, target_modules=["q_proj", "gate_proj"], task_type="CAUSAL_LM")
    if ranks > 1:
        launch_as_fsdp2(mixed_precision)
    args: TrainConfig = make_config(
        folder / "out",
        per_device_train_batch_size=8 // ranks,
        beta=0.1,
        micro_batch_tokens=20,
        bf16=mixed_precision == "bf16",
    )
    args.model_init_kwargs = {"dtype": "bfloat16" if mixed_precision == "bf16" else "float32"}
    trainer, _, _ = make_trainer(
        str(folder / "model"), args, mixed_episode, peft_config=adapter if "lora" in kind else None
    )
    watch = ShardWatch()
    trainer.add_callback(watch)
    unsharded: list[int] = []
    backward = trainer.accelerator.backward

    def watched(loss: torch.Tensor, **arguments: Any) -> None:
        backward(loss, **arguments)
        unsharded.append(sum(gradient.numel() for gradient in unsharded_gradients(trainer.model)))

    trainer.accelerator.backward = watched
    dtypes: set[torch.dtype] = set()
    objective = trainer._update.objective

    def seen(logps: torch.Tensor, *arguments: Any) -> Any:
        dtypes.update(t.dtype for t in (logps, arguments[-1]))
        return objective(logps, *arguments)

    object.__setattr__(seen, "beta", objective.beta)
    trainer._update.objective = seen
    trainer.train()
    # That of an adapter is the model without it.
    named = trainer.accelerator.unwrap_model(trainer.ref_model or trainer.model).named_parameters()
    reference = [(name, p) for name, p in named if "lora_" not in name]
    torch.save(
        {
            "reference": {name: whole(p) for name, p in reference},
            "reference_dtypes": {p.dtype for _, p in reference},
            "gradients": watch.gradients[0],
            "held": watch.held,
            "gradient_dtypes": watch.dtypes,
            "logps_dtypes": dtypes,
            "unsharded": unsharded,
            "log": trainer.state.log_history[0],
        },
        folder / f"{kind}-{ranks}-{trainer.accelerator.process_index}.pt",
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
