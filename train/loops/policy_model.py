"""The model in training and its reference, both with TRL's fused LM head.

`trl.trainer.utils.add_fused_lm_head` computes log-probabilities and entropies without whole logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import DistributedType, set_seed
from peft import PeftModel, get_peft_model
from torch.nn.functional import linear
from transformers import AutoModelForCausalLM
from trl.models import prepare_deepspeed
from trl.trainer.utils import add_fused_lm_head

from atommem.errors import ConfigError
from atommem.train.loops.models import shard_reference


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
    return AutoModelForCausalLM.from_pretrained(name, **loading)


def make_reference(
    policy: Any, args: Any, accelerator: Any, quantization_config: Any = None
) -> Any:
    """Load and place the model of the KL term; None without one, or if `policy` has an adapter."""
    if not args.beta or isinstance(policy, PeftModel):
        return None
    attention = policy.config._attn_implementation
    defaults = {"dtype": policy.dtype, "attn_implementation": attention}
    name = policy.config.name_or_path
    model = load_model(name, args, quantization_config, **defaults)
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
    if getattr(args, "disable_dropout", False):
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
    in_float32 = getattr(args, "cast_lm_head_to_fp32", False)
    if in_float32:
        _cast_head(model)
    add_fused_lm_head(model, args.temperature, in_float32, outputs)


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
    """Keep the adapter as it was loaded under the name ``ref``."""
    model.add_adapter("ref", model.peft_config["default"])
    for name, parameter in model.named_parameters():
        if ".default." in name:
            model.get_parameter(name.replace(".default.", ".ref.")).data.copy_(parameter.data)
