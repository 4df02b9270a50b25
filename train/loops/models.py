"""What is trained: a model by its path, or an adapter that goes on being trained, and its LM head on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trl.trainer.utils
from transformers import AutoTokenizer
from trl import ModelConfig, get_peft_config, get_quantization_config

from atommem.errors import ConfigError

CPU_TILE_WIDTH = 512
"""Vocabulary columns a tile. Seen on two cores, forward and backward: 39 -> 22 ms for 4,096 tokens at a
vocabulary of 152, 7.6 -> 5.0 s for 1,024 tokens at 49,152."""


def load_tokenizer(config: ModelConfig) -> Any:
    """The tokenizer of ``config.model_name_or_path``.

    Raises:
        ConfigError: There is none.
    """
    try:
        return AutoTokenizer.from_pretrained(config.model_name_or_path, revision=config.model_revision)
    except (OSError, ValueError) as error:
        name = str(config.model_name_or_path)
        reason = str(error) if Path(name).exists() else "it is no folder here, and the hub gave no model of this name"
        raise ConfigError(f"no tokenizer could be loaded from {name!r}: {reason}") from error


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
    model = AutoPeftModelForCausalLM.from_pretrained(config.model_name_or_path, is_trainable=True, **loading)
    return {"model": model}


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
        trl.trainer.utils._use_triton = _score_labelled_positions_only


def _score_labelled_positions_only(device: object) -> bool:
    return True
