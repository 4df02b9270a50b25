"""A model without its weights: its config, made into a model on torch's meta device, and measured."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl import ModelConfig, get_peft_config

from atommem.errors import ConfigError

SHIPPED = Path(__file__).parent.parent / "architectures"
"""Configs of the models that our recipes name, by the last part of their hub name in lower case."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The numbers that memory and time depend on. Parameters are counted on the model itself, tied ones once.

    Attributes:
        name, source, kind: As it was given; where its config was found; transformers' model type.
        parameters, trainable: Of the whole model, its adapter included.
        layer, embedding: Parameters of one transformer layer, and of the input embedding.
        layers, hidden, intermediate, vocabulary: Numbers and widths.
        query, key_value: heads x head size.
        query_norm: Whether queries and keys are normalised.
        tied: Whether input and output embedding are one.
        context: Longest input, tokens.
        dtype: That of the checkpoint, for ``dtype: auto``.
        lora: Whether only an adapter is trained.
    """

    name: str
    source: str
    kind: str
    parameters: int
    trainable: int
    layer: int
    embedding: int
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    query: int
    key_value: int
    query_norm: bool
    tied: bool
    context: int
    dtype: str
    lora: bool


def find_config(name: str) -> tuple[Any, str]:
    """A transformers config and where it was: a folder, a shipped one, or the hub's cache; never the network.

    Raises:
        ConfigError: It is in none of these places.
    """
    from transformers import AutoConfig

    shipped = SHIPPED / f"{name.rsplit('/', 1)[-1].lower()}.json"
    if not Path(name).is_dir() and shipped.is_file():
        return AutoConfig.for_model(**json.loads(shipped.read_text(encoding="utf-8"))), "shipped architecture"
    try:
        where = "folder" if Path(name).is_dir() else "hub cache"
        return AutoConfig.from_pretrained(name, local_files_only=True), where
    except (OSError, ValueError) as error:
        if Path(name).is_dir():
            raise ConfigError(f"{name} holds no model that transformers knows: {error}") from error
        known = ", ".join(sorted(path.stem for path in SHIPPED.glob("*.json")))
        raise ConfigError(
            f"the architecture of {name!r} is not on this machine: give a folder with its config.json (hf download "
            f"{name} config.json --local-dir DIR), or one of {known}."
        ) from error


def measure(config: ModelConfig) -> ModelShape:
    """The shape of what ``config.model_name_or_path`` names, with the adapter that is trained on it.

    Raises:
        ConfigError: Its architecture is unknown, or is no language model of transformer layers.
    """
    import torch
    from transformers import AutoModelForCausalLM

    name = str(config.model_name_or_path)
    adapter = Path(name) / "adapter_config.json"
    base, lora = name, config.use_peft
    if adapter.is_file():
        base, lora = str(json.loads(adapter.read_text(encoding="utf-8"))["base_model_name_or_path"]), True
    found, source = find_config(base)
    text = found.get_text_config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(found)
        layers = getattr(model.base_model, "layers", None)
        if layers is None:
            raise ConfigError(f"{name} ({found.model_type}) has no list of layers: the dry run cannot estimate it.")
        layer = sum(weight.numel() for weight in layers[0].parameters())
        embedding = model.get_input_embeddings().weight.numel()
        if lora:
            model = _with_adapter(model, config, adapter)
    heads = text.num_attention_heads
    head_size = getattr(text, "head_dim", None) or text.hidden_size // heads
    return ModelShape(
        name=name,
        source=source,
        kind=text.model_type,
        parameters=sum(weight.numel() for weight in model.parameters()),
        trainable=sum(weight.numel() for weight in model.parameters() if weight.requires_grad),
        layer=layer,
        embedding=embedding,
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        vocabulary=text.vocab_size,
        query=heads * head_size,
        key_value=(getattr(text, "num_key_value_heads", None) or heads) * head_size,
        query_norm=hasattr(getattr(layers[0], "self_attn", None), "q_norm"),
        tied=bool(text.tie_word_embeddings),
        context=text.max_position_embeddings,
        dtype=str(found.dtype or torch.float32).removeprefix("torch."),
        lora=lora,
    )


def parameters_of(name: str) -> int:
    """Parameters of the (embedding) model `name`; ConfigError where its architecture is unknown."""
    import torch
    from transformers import AutoModel

    config, _ = find_config(name)
    with torch.device("meta"):
        return sum(weight.numel() for weight in AutoModel.from_config(config).parameters())


def _with_adapter(model: Any, config: ModelConfig, adapter: Path) -> Any:
    from peft import PeftConfig, get_peft_model

    peft_config = PeftConfig.from_pretrained(str(adapter.parent)) if adapter.is_file() else get_peft_config(config)
    peft_config.inference_mode = False
    try:
        return get_peft_model(model, peft_config, low_cpu_mem_usage=True)
    except ValueError as error:
        raise ConfigError(f"the adapter does not fit {config.model_name_or_path}: {error}") from error
