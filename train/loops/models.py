"""Loading what is trained, its reference and precision under FSDP2, and its LM head on CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import trl.trainer.utils
from accelerate.utils import fsdp2_prepare_model
from torch.distributed.fsdp import FSDPModule
from transformers.integrations import deepspeed
from trl import ModelConfig, get_peft_config, get_quantization_config

from atommem.errors import ConfigError
from atommem.policy.local import read_tokenizer

CPU_TILE_WIDTH = 512
"""Vocabulary columns of a tile; a third to a half faster than TRL's 32,768 on two cores."""


def load_tokenizer(config: ModelConfig) -> Any:
    return read_tokenizer(str(config.model_name_or_path), config.model_revision)


@contextmanager
def loading_whole() -> Iterator[None]:
    """Make transformers load whole models on every rank.

    Otherwise ``fsdp_cpu_ram_efficient_loading`` leaves zeros on all ranks but the first, and
    DeepSpeed's ``zero3_init_flag`` an empty part on each.
    """
    with (
        patch.dict(os.environ, FSDP_CPU_RAM_EFFICIENT_LOADING="false"),
        patch.object(deepspeed, "_hf_deepspeed_config_weak_ref", None),
    ):
        yield


def model_arguments(config: ModelConfig, args: Any) -> dict[str, Any]:
    """Return ``model``, ``peft_config`` and ``quantization_config`` for a trainer.

    A path is passed on, with its loading arguments in ``args.model_init_kwargs``, because the
    reference comes from the same place. A folder with a peft adapter is loaded here, trainable.
    """
    loading = {
        "revision": config.model_revision,
        "dtype": config.dtype,
        "attn_implementation": config.attn_implementation,
        **(args.model_init_kwargs or {}),
    }
    if not (Path(str(config.model_name_or_path)) / "adapter_config.json").is_file():
        args.model_init_kwargs = loading
        return {
            "model": config.model_name_or_path,
            "peft_config": get_peft_config(config),
            "quantization_config": get_quantization_config(config),
        }
    if config.use_peft:
        raise ConfigError(
            f"use_peft=true: {config.model_name_or_path} is an adapter already. Leave out use_peft "
            "to continue training it, or merge it into its base model first."
        )
    from peft import AutoPeftModelForCausalLM

    loading.pop("revision")
    model = AutoPeftModelForCausalLM.from_pretrained(
        config.model_name_or_path, is_trainable=True, **loading
    )
    return {"model": model}


def shard_reference(model: Any, accelerator: Any) -> Any:
    """Shard a reference model as accelerate shards the policy: by layer, from rank 0's weights."""
    reduce_in_float32(accelerator)  # as for the policy, so that log-probabilities are equal
    model.requires_grad_(False)  # keeps the dtype that it was loaded in
    model = fsdp2_prepare_model(accelerator, model)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # accelerate keeps the head gathered for a backward pass, which a reference lacks.
            module.set_reshard_after_forward(True, recurse=False)
    return model.eval()


def reduce_in_float32(accelerator: Any) -> None:
    """Make FSDP2 average gradients in float32, and keep the dtype of log-probabilities.

    Call it before the model is prepared. accelerate sets both to bfloat16, with no setting for it.
    """
    plugin = accelerator.state.fsdp_plugin if accelerator.is_fsdp2 else None
    if plugin is not None and plugin.mixed_precision_policy is not None:
        plugin.mixed_precision_policy = replace(
            plugin.mixed_precision_policy, reduce_dtype=torch.float32, output_dtype=None
        )


def tune_lm_head_for_cpu(device_type: str) -> None:
    """Make TRL's LM head fast on CPU; no effect elsewhere.

    Its tiles of 32,768 columns suit GPUs: on CPU each row begins a new memory page. Without Triton
    it also projects positions that are not scored. TRL reads both constants at every call.
    """
    if device_type != "cpu":
        return
    head: Any = trl.trainer.utils
    if find_spec("triton") is None and not hasattr(head, "_use_triton"):
        raise ConfigError(
            f"trl={trl.__version__}: its LM head needs Triton. pip install 'trl>=1.16'."
        )
    head._CHUNKED_LOGPROB_CHUNK_SIZE = CPU_TILE_WIDTH
    head._use_triton = lambda device: True
