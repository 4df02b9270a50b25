"""Checkpoints that every process writes its part of: accelerate's ``SHARDED_STATE_DICT`` (torch DCP), under FSDP.

accelerate and transformers write them and read them under FSDP, on any number of processes. Here is what they leave
out: reading one in a process that does not shard its model.
"""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from accelerate.utils import load_fsdp_model, load_fsdp_optimizer
from accelerate.utils.constants import FSDP_MODEL_NAME, OPTIMIZER_NAME
from torch.distributed.fsdp import StateDictType

MODEL_FOLDER = f"{FSDP_MODEL_NAME}_0"
OPTIMIZER_FOLDER = f"{OPTIMIZER_NAME}_0"
# What these functions ask of a plugin. The state dicts of an unsharded model are whole on every process.
_UNSHARDED: Any = SimpleNamespace(
    fsdp_version=2, state_dict_type=StateDictType.SHARDED_STATE_DICT, state_dict_config=None
)

ALONE = partial(warnings.catch_warnings, action="ignore", category=UserWarning)
"""torch warns that there is one process only, which is meant."""


def is_sharded(checkpoint: str | Path) -> bool:
    """Whether the weights of this checkpoint lie in parts."""
    return (Path(checkpoint) / MODEL_FOLDER).is_dir()


def writes_shards(trainer: Any) -> bool:
    """Whether this trainer's checkpoints will be sharded."""
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    return plugin is not None and plugin.state_dict_type == StateDictType.SHARDED_STATE_DICT


def load_model(trainer: Any, checkpoint: str) -> None:
    """Load weights (of an adapter, if there is one) into a model that is not sharded."""
    with ALONE():
        load_fsdp_model(
            _UNSHARDED, trainer.accelerator, trainer.model, checkpoint, adapter_only=True
        )


def load_optimizer(trainer: Any, checkpoint: str) -> None:
    """Load the optimizer's state where the model is not sharded."""
    with ALONE():
        load_fsdp_optimizer(
            _UNSHARDED, trainer.accelerator, trainer.optimizer, trainer.model, checkpoint
        )


def save_description(trainer: Any, folder: Path) -> None:
    """Write configuration and tokenizer beside the parts, so that a checkpoint is all that an export needs."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    for part in getattr(model, "peft_config", {}).values() or (
        model.config,
        model.generation_config,
    ):
        part.save_pretrained(folder)
    trainer.processing_class.save_pretrained(folder)
