"""The adapter that is trained, as folders that vLLM reads: a new name for every update."""

from __future__ import annotations

import secrets
import shutil
from collections import deque
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from safetensors import SafetensorError

from atommem.errors import ConfigError, OutageError
from atommem.policy.server_pool import Adapter
from atommem.train.rollout.backend import TrainingSide

KEPT = 2
"""Versions on disk: vLLM may read the folder of the one before only when a late request asks for it."""


class AdapterPublisher:
    """Saves the trained LoRA adapter under a fresh name for every update.

    A fresh name, and no replacement in place: vLLM keys its prefix cache by the adapter's name, and would go on
    serving attention keys and values of the old weights. Names hold a number of this run, because a server may
    have outlived another run.

    Args:
        folder: Where the versions go. Servers read them there, so it must be visible to them.
        kept: Versions that requests may still name.
    """

    def __init__(self, folder: Path, kept: int = KEPT) -> None:
        self.folder = folder.absolute()
        self._kept = kept
        self._run = ""
        self._count = 0
        self._saved: deque[Adapter] = deque()

    def save(self, trainer: TrainingSide) -> tuple[Adapter, list[Adapter]]:
        """Save the current adapter; all ranks call it, and get the same name and the versions that are no more needed.

        Raises:
            ConfigError: The adapter is none that vLLM serves.
            OutageError: It cannot be written.
        """
        # TRL's own: imported where it is needed, for it takes seconds.
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
                save_lora_adapter(
                    model, trainer.accelerator, model.active_adapters[0], adapter.path
                )
            except (
                OSError,
                SafetensorError,
            ) as error:  # on the main process, which writes, when all is gathered
                problem = f"the adapter could not be written to {adapter.path}: {error}"
        # Until it is written, the others wait here.
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
    """Raise ConfigError when vLLM cannot serve the model's adapter as it is (TRL's rules)."""
    from trl.experimental.async_grpo.async_grpo_trainer import validate_lora_for_vllm_sync

    try:
        validate_lora_for_vllm_sync(model)
    except ValueError as error:
        raise ConfigError(
            f"vLLM cannot serve this adapter, and merged weights are not sent: {error}"
        ) from error
