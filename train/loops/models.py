"""What is trained: a model by its path, or an adapter that goes on being trained; its reference and precision under
FSDP2, and its LM head on a CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import trl.trainer.utils
from accelerate.utils import broadcast
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers.integrations import deepspeed
from trl import ModelConfig, get_peft_config, get_quantization_config
from trl.models.utils import prepare_fsdp

from atommem.config import EmbedderConfig
from atommem.embedding import make_embedder
from atommem.embedding.embedder import Embedder
from atommem.errors import ConfigError
from atommem.hub import not_loaded, only_here
from atommem.policy.local import read_tokenizer

CPU_TILE_WIDTH = 512
"""Vocabulary columns a tile. Seen on two cores, forward and backward: 39 -> 22 ms for 4,096 tokens at a
vocabulary of 152, 7.6 -> 5.0 s for 1,024 tokens at 49,152."""


def load_tokenizer(config: ModelConfig) -> Any:
    """The tokenizer of ``config.model_name_or_path``.

    Raises:
        ConfigError: There is none.
    """
    name = str(config.model_name_or_path)
    try:
        return read_tokenizer(
            name, revision=config.model_revision, local_files_only=only_here(name)
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no tokenizer could be loaded from {name!r}: {not_loaded(name, error)}"
        ) from error


def load_embedder(config: EmbedderConfig) -> Embedder:
    """The embedder, on every rank."""
    with loading_whole():
        return make_embedder(config)


@contextmanager
def loading_whole() -> Iterator[None]:
    """What transformers loads inside is whole on every rank. Else ``fsdp_cpu_ram_efficient_loading`` leaves zeros on
    all but the first, and DeepSpeed's ``zero3_init_flag`` an empty part on each."""
    with (
        patch.dict(os.environ, FSDP_CPU_RAM_EFFICIENT_LOADING="false"),
        patch.object(deepspeed, "_hf_deepspeed_config_weak_ref", None),
    ):
        yield


def model_arguments(config: ModelConfig, args: Any) -> dict[str, Any]:
    """``model``, ``peft_config`` and ``quantization_config`` for a TRL trainer.

    A path is handed on as it is, with its loading arguments in ``args.model_init_kwargs``: TRL loads
    the reference model of a KL term from the same place. A folder that holds a peft adapter is
    loaded here, trainable, and no second adapter is put on top.

    Raises:
        ConfigError: An adapter was asked for on top of an adapter.
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
            f"{config.model_name_or_path} is a peft adapter already: leave out use_peft to go on training it, or "
            "merge it into its base model first."
        )
    from peft import AutoPeftModelForCausalLM

    loading.pop("revision")
    model = AutoPeftModelForCausalLM.from_pretrained(
        config.model_name_or_path, is_trainable=True, **loading
    )
    return {"model": model}


@contextmanager
def sharding_references() -> Iterator[None]:
    """TRL makes the reference of a KL term while it sets up its trainer; inside, it is sharded by `shard_reference`."""
    with patch("trl.trainer.grpo_trainer.prepare_fsdp", shard_reference):
        yield


def shard_reference(model: Any, accelerator: Any) -> Any:
    """Share out a reference model as accelerate shares out the policy: layer by layer, with the weights of rank 0.

    TRL shards what each rank holds, and as one unit. But with ``fsdp_cpu_ram_efficient_loading`` all ranks but the
    first of a node hold zeros, and one unit is gathered as a whole.

    Raises:
        ConfigError: A parameter is not what rank 0 loaded.
    """
    if not accelerator.is_fsdp2:
        return prepare_fsdp(model, accelerator)
    reduce_in_float32(
        accelerator
    )  # as for the policy: equal weights are to give equal log-probabilities
    model.requires_grad_(False)  # what is not trained stays in the dtype that it was loaded in
    loaded = broadcast(_fingerprints(model).to(accelerator.device))
    model = fsdp2_prepare_model(accelerator, model)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # accelerate keeps the head whole for a backward pass, which does not come here.
            module.set_reshard_after_forward(True, recurse=False)
    differs = ~torch.isclose(_fingerprints(model), loaded, rtol=1e-6, atol=0.0).all(dim=1)
    if differs.any():
        names = [
            name
            for (name, _), wrong in zip(model.named_parameters(), differs.tolist(), strict=True)
            if wrong
        ]
        raise ConfigError(
            f"the reference model of the KL term is not what rank 0 loaded: {names[0]} and {len(names) - 1} others "
            "differ. Give every node the same model folder, or train without it (beta: 0)."
        )
    return model.eval()


@torch.no_grad()
def _fingerprints(model: Any) -> torch.Tensor:
    """(P, 2) float64: the sums of each parameter's absolute values and squares. Collective where it is sharded."""
    sums = []
    for parameter in model.parameters():
        values = parameter.detach().double()
        both = (values.abs().sum(), values.square().sum())
        sums.append(
            torch.stack([one.full_tensor() if isinstance(one, DTensor) else one for one in both])
        )
    return torch.stack(sums)


def reduce_in_float32(accelerator: Any) -> None:
    """Under FSDP2, average gradients in float32, and leave log-probabilities in the dtype that they were computed in.

    Call it before the model is prepared. accelerate sets all of it to bfloat16, and no launcher file can say otherwise.
    """
    if (
        accelerator.is_fsdp2
        and (policy := accelerator.state.fsdp_plugin.mixed_precision_policy) is not None
    ):
        accelerator.state.fsdp_plugin.mixed_precision_policy = replace(
            policy, reduce_dtype=torch.float32, output_dtype=None
        )


def tune_lm_head_for_cpu(device_type: str) -> None:
    """Make TRL's LM head fast on CPU; elsewhere nothing changes.

    Its tiles of 32,768 columns suit GPUs. On CPU each of a tile's rows then begins a new memory page, and
    the buffer of half a gigabyte is mapped anew at every call. And where there is no Triton it
    projects every position, also those whose prediction is not scored, to keep shapes the same for
    compilers: without one, that is wasted. TRL reads both module constants at every call and offers no
    argument for them.
    """
    if device_type == "cpu":
        trl.trainer.utils._CHUNKED_LOGPROB_CHUNK_SIZE = CPU_TILE_WIDTH
        trl.trainer.utils._use_triton = lambda device: True
