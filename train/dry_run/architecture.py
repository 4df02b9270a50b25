"""A model without its weights: its config, made into a model on torch's meta device, and measured."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl import ModelConfig, get_peft_config

from atommem.errors import ConfigError
from atommem.train.packing.planning import widths

SHIPPED = Path(__file__).parent.parent / "architectures"
"""Configs of the models that our recipes name, by the last part of their hub name in lower case."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What memory and time depend on. Parameters are counted on the model itself, tied ones once."""

    name: str
    source: str  # where its config was found
    config: Any  # transformers', of the part that reads text
    parameters: int  # its adapter's included
    trainable: int
    layer: int  # parameters of one transformer layer
    embedding: int  # parameters of the input embedding
    query_norm: bool  # whether queries and keys are normalised
    dtype: str  # of the checkpoint, for `dtype: auto`
    lora: bool  # whether only an adapter is trained

    @property
    def context(self) -> int:
        """Longest input, tokens."""
        return int(self.config.max_position_embeddings)

    @property
    def widths(self) -> tuple[int, int, int, int]:
        """See `atommem.train.packing.planning.widths`."""
        return widths(self.config)


def find_config(name: str) -> tuple[Any, str]:
    """A transformers config and where it was: a folder, a shipped one, or the hub's cache; never the network.

    Raises:
        ConfigError: It is in none of these places.
    """
    from transformers import AutoConfig

    is_folder, shipped = Path(name).is_dir(), SHIPPED / f"{name.rsplit('/', 1)[-1].lower()}.json"
    if not is_folder and shipped.is_file():
        return AutoConfig.for_model(
            **json.loads(shipped.read_text(encoding="utf-8"))
        ), "shipped architecture"
    try:
        return AutoConfig.from_pretrained(
            name, local_files_only=True
        ), "folder" if is_folder else "hub cache"
    except (OSError, ValueError) as error:
        if is_folder:
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
    from peft import PeftConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    name = str(config.model_name_or_path)
    is_adapter = (Path(name) / "adapter_config.json").is_file()
    adapter: Any = PeftConfig.from_pretrained(name) if is_adapter else get_peft_config(config)
    found, source = find_config(str(adapter.base_model_name_or_path) if is_adapter else name)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(found)
        layers, embedding = (
            getattr(model.base_model, "layers", None),
            model.get_input_embeddings().weight.numel(),
        )
        if layers is None:
            raise ConfigError(
                f"{name} ({found.model_type}) has no list of layers: the dry run cannot estimate it."
            )
        layer = sum(weight.numel() for weight in layers[0].parameters())
        if adapter is not None:
            adapter.inference_mode = False
            try:
                model = get_peft_model(model, adapter, low_cpu_mem_usage=True)
            except ValueError as error:
                raise ConfigError(f"the adapter does not fit {name}: {error}") from error
    return ModelShape(
        name=name,
        source=source,
        config=found.get_text_config(),
        parameters=model.num_parameters(),
        trainable=model.num_parameters(only_trainable=True),
        layer=layer,
        embedding=embedding,
        query_norm=hasattr(getattr(layers[0], "self_attn", None), "q_norm"),
        dtype=str(found.dtype or torch.float32).removeprefix("torch."),
        lora=adapter is not None,
    )


def parameters_of(name: str) -> int:
    """Parameters of the (embedding) model `name`; ConfigError where its architecture is unknown."""
    import torch
    from transformers import AutoModel

    config, _ = find_config(name)
    with torch.device("meta"):
        return int(AutoModel.from_config(config).num_parameters())
