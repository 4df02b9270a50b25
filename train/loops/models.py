"""The model in training and its reference: loaded, with TRL's fused LM head, and placed."""

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
from accelerate.utils import DistributedType, fsdp2_prepare_model, set_seed
from peft import PeftModel, get_peft_model
from torch.distributed.fsdp import FSDPModule
from torch.nn.functional import linear
from transformers import AutoModelForCausalLM
from transformers.integrations import deepspeed
from trl import ModelConfig, get_peft_config, get_quantization_config
from trl.models import prepare_deepspeed
from trl.trainer.utils import add_fused_lm_head

from atommem.errors import ConfigError
from atommem.plugins import hub_name
from atommem.policy.local import model_under, read_tokenizer

CPU_TILE_WIDTH = 512  # vocabulary columns; a third to a half faster than TRL's 32,768 on 2 cores


def base_model(config: ModelConfig) -> str | None:
    """Return the model under an adapter that is trained further; None for another model."""
    name, given = str(config.model_name_or_path), getattr(config, "base_model", None)
    base = model_under(name, given)
    if given and not base:
        raise ConfigError(f"base_model={given}: {name} is not the folder of an adapter. Drop it.")
    return base


def load_tokenizer(config: ModelConfig) -> Any:
    name, base = str(config.model_name_or_path), base_model(config)
    if base and not Path(name, "tokenizer.json").is_file():
        return read_tokenizer(*hub_name(base))
    return read_tokenizer(name, config.model_revision)


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
    if (config.load_in_4bit or config.load_in_8bit) and find_spec("bitsandbytes") is None:
        raise ConfigError("load_in_4bit, load_in_8bit: pip install bitsandbytes first.")
    base = base_model(config)
    if base is None:
        args.model_init_kwargs = loading
        return {
            "model": config.model_name_or_path,
            "peft_config": get_peft_config(config),
            "quantization_config": get_quantization_config(config),
        }
    if config.use_peft:
        raise ConfigError(
            f"use_peft=true: {config.model_name_or_path} is an adapter already. Give --use_peft "
            "false to continue training it, or merge it into its base model first."
        )
    name, loading["revision"] = hub_name(base)
    model = AutoModelForCausalLM.from_pretrained(name, **loading)
    adapter = str(config.model_name_or_path)
    return {"model": PeftModel.from_pretrained(model, adapter, is_trainable=True)}


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
    """Have FSDP2, before it prepares a model, average in float32 and keep dtypes of outputs."""
    plugin = accelerator.state.fsdp_plugin if accelerator.is_fsdp2 else None
    if plugin is not None and plugin.mixed_precision_policy is not None:
        plugin.mixed_precision_policy = replace(
            plugin.mixed_precision_policy, reduce_dtype=torch.float32, output_dtype=None
        )


def tune_lm_head_for_cpu(device_type: str) -> None:
    """Make TRL's LM head, which reads two constants at every call, fast on CPU.

    Its tiles of 32,768 columns suit GPUs: on CPU each row begins a new memory page. Without Triton
    it also projects positions that are not scored.
    """
    if device_type != "cpu":
        return
    head: Any = trl.trainer.utils
    if find_spec("triton") is None and not hasattr(head, "_use_triton"):
        raise ConfigError(f"trl={trl.__version__}: its LM head needs Triton. Install trl>=1.16.")
    head._CHUNKED_LOGPROB_CHUNK_SIZE = CPU_TILE_WIDTH
    head._use_triton = lambda device: True


def make_policy(
    model: Any, args: Any, tokenizer: Any, peft_config: Any = None, quantization_config: Any = None
) -> Any:
    """Make the model to train; `model` may be a path, and `peft_config` adds an adapter."""
    set_seed(args.seed)  # an adapter begins with random numbers
    if isinstance(model, str):
        model = load_model(model, args, quantization_config)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    for config in (model.config.get_text_config(), model.generation_config):
        config.pad_token_id = tokenizer.pad_token_id
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    _prepare_head(base, args, ("log_probs", "entropy"))
    quantized = any(getattr(base, f"is_loaded_in_{bits}bit", False) for bits in (4, 8))
    zero3 = args.deepspeed_plugin is not None and args.deepspeed_plugin.zero_stage == 3
    if peft_config is not None:
        # ZeRO-3 gathers parameters of one dtype only.
        model = get_peft_model(model, peft_config, autocast_adapter_dtype=quantized or not zero3)
    elif isinstance(model, PeftModel) and args.beta:
        _add_reference_adapter(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # else another policy would be trained than sampled
    if not isinstance(model, PeftModel):
        return model
    if hasattr(model.get_output_embeddings(), "base_layer"):
        raise ConfigError(
            "lora_target_modules: an adapter of the LM head would not be trained, because "
            "log-probabilities are computed from its base weight. Leave out lm_head."
        )
    if args.gradient_checkpointing:
        model.enable_input_require_grads()
        if zero3:
            kwargs = args.gradient_checkpointing_kwargs or {}
            args.gradient_checkpointing_kwargs = {**kwargs, "use_reentrant": True}
    return model


def load_model(name: str, args: Any, quantization_config: Any = None, **defaults: Any) -> Any:
    """Load a language model with ``args.model_init_kwargs``, as `LocalPolicy` loads it."""
    loading = {"dtype": "float32", "trust_remote_code": args.trust_remote_code, **defaults}
    loading |= args.model_init_kwargs or {}
    if quantization_config is not None:
        loading["quantization_config"] = quantization_config
    model = AutoModelForCausalLM.from_pretrained(name, **loading)
    if getattr(model, "peft_config", None):
        raise ConfigError(f"model_name_or_path={name}: is an adapter. Give its folder.")
    return model


def make_reference(
    policy: Any, args: Any, accelerator: Any, quantization_config: Any = None
) -> Any:
    """Load and place the model of the KL term; None without one, or if `policy` has an adapter."""
    if not args.beta or isinstance(policy, PeftModel):
        return None
    attention = policy.config._attn_implementation
    defaults = {"dtype": policy.dtype, "attn_implementation": attention}
    model = load_model(policy.config.name_or_path, args, quantization_config, **defaults)
    _prepare_head(model, args, ("log_probs",))
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        return prepare_deepspeed(model, accelerator)
    if accelerator.is_fsdp2:
        return shard_reference(model, accelerator)
    return accelerator.prepare_model(model, evaluation_mode=True)


@contextmanager
def use_reference(adapted: Any) -> Iterator[None]:
    """Make an adapted model its own reference: without its adapter, or as it was loaded."""
    if "ref" not in adapted.peft_config:
        with adapted.disable_adapter():
            yield
        return
    active = adapted.active_adapter
    adapted.set_adapter("ref")
    try:
        yield
    finally:
        adapted.set_adapter(active)


def _prepare_head(model: Any, args: Any, outputs: tuple[str, ...]) -> None:
    if args.cast_lm_head_to_fp32:
        _cast_head(model)
    add_fused_lm_head(model, args.temperature, args.cast_lm_head_to_fp32, outputs)


def _cast_head(model: Any) -> None:
    """Project in float32; tied embeddings keep the dtype of what they return."""
    dtype = model.dtype
    head = model.get_output_embeddings().float()

    def project(hidden: torch.Tensor) -> torch.Tensor:
        bias = None if head.bias is None else head.bias.float()
        return linear(hidden.float(), head.weight.float(), bias)

    head.forward = project
    if model.config.tie_word_embeddings:
        embeddings = model.get_input_embeddings()
        embeddings.register_forward_hook(lambda module, inputs, output: output.to(dtype))


def _add_reference_adapter(model: PeftModel) -> None:
    model.add_adapter("ref", model.peft_config["default"])
    for name, parameter in model.named_parameters():
        if ".default." in name:
            model.get_parameter(name.replace(".default.", ".ref.")).data.copy_(parameter.data)
