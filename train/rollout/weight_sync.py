"""The trained weights as vLLM takes them: LoRA adapters as folders, full weights by name."""

from __future__ import annotations

import secrets
import shutil
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch.distributed.tensor import DTensor

from atommem.errors import ConfigError, OutageError
from atommem.files import let_others_read
from atommem.policy.server_pool import Adapter
from atommem.train.errors import WRITE_ERRORS

KEPT = 2
"""Versions of an adapter on disk; late requests may still name the one before the last."""


class AdapterPublisher:
    """Saves the trained LoRA adapter under a new name for every update.

    vLLM keys its prefix cache by the adapter's name, so replacing an adapter in place would serve
    attention keys and values of old weights. Names hold a random number, because a server may have
    served another run. Requests may still name `kept` versions.
    """

    def __init__(self, folder: Path, kept: int = KEPT) -> None:
        self.folder = folder.absolute()
        self._kept = kept
        self._run = ""
        self._count = 0
        self._saved: deque[Adapter] = deque()

    def save(self, trainer: Any) -> tuple[Adapter, list[Adapter]]:
        """Save the current adapter; returns it and deleted versions, the same on every rank."""
        # Imported here because it takes seconds.
        from trl.experimental.async_grpo.async_grpo_trainer import save_lora_adapter

        model = trainer.accelerator.unwrap_model(trainer.model)
        if not self._run:
            check_servable(model)
            self._run = broadcast_object_list([secrets.token_hex(4)])[0]
        self._count += 1
        name = f"atommem-{self._run}-v{self._count}"
        adapter = Adapter(name, str(self.folder / name))
        adapted = [parameter for key, parameter in model.named_parameters() if "lora_" in key]
        problem = ""
        with trainer._dist.gather_params(adapted):
            try:
                active = model.active_adapters[0]
                save_lora_adapter(model, trainer.accelerator, active, adapter.path)
                if trainer.accelerator.is_main_process:
                    let_others_read(Path(adapter.path))
            except WRITE_ERRORS as error:
                problem = f"the adapter could not be written to {adapter.path}: {error}"
        # The other ranks wait here for the one that writes.
        problem = broadcast_object_list([problem])[0]
        if problem:
            raise OutageError(problem)
        self._saved.append(adapter)
        return adapter, self._delete(len(self._saved) - self._kept)

    def close(self) -> list[Adapter]:
        """Delete all folders; returns the versions that were still there."""
        return self._delete(len(self._saved))

    def _delete(self, count: int) -> list[Adapter]:
        oldest = [self._saved.popleft() for _ in range(count)]
        for adapter in oldest:
            shutil.rmtree(adapter.path, ignore_errors=True)
        return oldest


def check_servable(model: Any) -> None:
    """Raise ConfigError if vLLM cannot serve the model's adapter (TRL's rules)."""
    from trl.experimental.async_grpo.async_grpo_trainer import validate_lora_for_vllm_sync

    try:
        validate_lora_for_vllm_sync(model)
    except ValueError as error:
        raise ConfigError(f"vLLM cannot serve this adapter: {error}") from error


def describe_weights(trainer: Any) -> dict[str, Any]:
    """Describe what `named_weights` yields, as TRL's client takes it; not collective."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    named = list(model.named_parameters())
    return {
        "names": [vllm_name(name) for name, _ in named],
        "dtype_names": [str(parameter.dtype).removeprefix("torch.") for _, parameter in named],
        # ZeRO-3 leaves the parameter itself empty.
        "shapes": [list(getattr(weight, "ds_shape", weight.shape)) for _, weight in named],
    }


def named_weights(trainer: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every parameter, gathered from all ranks one at a time, under vLLM's name."""
    if trainer._dist.fsdp_version == 1:
        raise ConfigError("fsdp_version=1: weights cannot be sent to vLLM. Use fsdp_version: 2.")
    device = trainer.accelerator.device
    for name, parameter in trainer.accelerator.unwrap_model(trainer.model).named_parameters():
        with trainer._dist.gather_params([parameter]):
            # The shard of an offloaded parameter is on the CPU; gathering needs it on the device.
            whole: torch.Tensor = parameter.detach().to(device)
            yield vllm_name(name), whole.full_tensor() if isinstance(whole, DTensor) else whole


def vllm_name(name: str) -> str:
    """Return a parameter's name in the checkpoint, without what wrappers add."""
    name = name.removeprefix("module.").replace("_checkpoint_wrapped_module.", "")
    return name.replace("_orig_mod.", "")
