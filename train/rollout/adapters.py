"""The trained LoRA adapter as folders that vLLM loads, under a new name for every update."""

from __future__ import annotations

import secrets
import shutil
from collections import deque
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list

from atommem.errors import ConfigError, OutageError
from atommem.policy.server_pool import Adapter
from atommem.train.errors import WRITE_ERRORS

KEPT = 2
"""Versions on disk; late requests may still name the one before the last."""


class AdapterPublisher:
    """Saves the trained LoRA adapter under a new name for every update.

    vLLM keys its prefix cache by the adapter's name, so replacing an adapter in place would serve
    attention keys and values of old weights. Names hold a random number of this run, because a
    server may have served another run.

    Args:
        folder: Where the versions go; servers read them there.
        kept: Versions that requests may still name.
    """

    def __init__(self, folder: Path, kept: int = KEPT) -> None:
        self.folder = folder.absolute()
        self._kept = kept
        self._run = ""
        self._count = 0
        self._saved: deque[Adapter] = deque()

    def save(self, trainer: Any) -> tuple[Adapter, list[Adapter]]:
        """Save the current adapter; returns it and the versions that are no longer needed.

        Collective: every rank gets the same result.

        Raises:
            ConfigError: vLLM cannot serve the adapter.
            OutageError: It cannot be written.
        """
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
            except WRITE_ERRORS as error:
                problem = f"the adapter could not be written to {adapter.path}: {error}"
        # The other ranks wait here for the one that writes.
        problem = broadcast_object_list([problem])[0]
        if problem:
            raise OutageError(problem)
        self._saved.append(adapter)
        return adapter, [self._saved.popleft() for _ in range(len(self._saved) - self._kept)]

    def remove(self, adapters: list[Adapter]) -> None:
        """Delete the folders of these versions."""
        for adapter in adapters:
            shutil.rmtree(adapter.path, ignore_errors=True)

    def close(self) -> list[Adapter]:
        """Delete all folders; returns the versions that were still there."""
        left = list(self._saved)
        self._saved.clear()
        self.remove(left)
        return left


def check_servable(model: Any) -> None:
    """Raise ConfigError if vLLM cannot serve the model's adapter (TRL's rules)."""
    from trl.experimental.async_grpo.async_grpo_trainer import validate_lora_for_vllm_sync

    try:
        validate_lora_for_vllm_sync(model)
    except ValueError as error:
        raise ConfigError(f"vLLM cannot serve this adapter: {error}") from error
