"""Shapes that a dry run starts from: the processes, and a model without its weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from trl import ModelConfig, get_peft_config

from atommem.errors import ConfigError
from atommem.plugins import find_file
from atommem.train.packing.tree_attention import tree_obstacle
from atommem.train.train_config import check_parallelism

SHIPPED = Path(__file__).parent.parent / "architectures"
"""Configs of the models that our recipes name, by the last part of their hub name in lower case."""

NODE = 8
"""Most devices of a node, where the launcher does not say."""
OPTIMIZER, GRADIENTS, WEIGHTS = 1, 2, 3
"""ZeRO's stages from which optimizer, gradients and weights are sharded."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes that memory and time depend on; parameters are counted with the adapter."""

    name: str
    config: Any  # transformers', of the language model
    parameters: int
    trainable: int
    layer: int  # mean parameters of a layer
    active: int  # and those that one token uses: not the experts of other tokens
    embedding: int  # parameters of the input embedding
    attention_layers: int  # those with keys and values of all tokens
    query_norm: bool
    obstacle: str | None  # why rows are padded: `tree_obstacle`
    dtype: str
    lora: bool


def find_config(name: str) -> Any:
    """Return the transformers config of a folder, a shipped architecture or the hub's cache."""
    from transformers import AutoConfig

    shipped = SHIPPED / f"{name.rsplit('/', 1)[-1].lower()}.json"
    if not Path(name).is_dir() and shipped.is_file():
        return AutoConfig.for_model(**json.loads(shipped.read_text(encoding="utf-8")))
    try:
        return AutoConfig.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError) as error:
        known = ", ".join(sorted(path.stem for path in SHIPPED.glob("*.json")))
        raise ConfigError(
            f"model {name!r}: its architecture is not on this machine. Give a folder with its "
            f"config.json, or one of {known}."
        ) from error


def measure(config: ModelConfig) -> ModelShape:
    """Measure ``config.model_name_or_path`` with its adapter, on torch's meta device."""
    import torch
    from peft import PeftConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    name = str(config.model_name_or_path)
    is_adapter = (Path(name) / "adapter_config.json").is_file()
    adapter: Any = PeftConfig.from_pretrained(name) if is_adapter else get_peft_config(config)
    found = find_config(str(adapter.base_model_name_or_path) if is_adapter else name)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(found)
        layers = model.base_model.layers
        embedding = model.get_input_embeddings().weight.numel()
        layer = sum(weight.numel() for weight in layers.parameters()) // len(layers)
        kinds = getattr(found.get_text_config(), "layer_types", None) or []
        obstacle = tree_obstacle(model)
        chosen = getattr(found.get_text_config(), "num_experts_per_tok", None) or 0
        idle = sum(idle_parameters(layer, chosen) for layer in layers) // len(layers)
        if adapter is not None:
            adapter.inference_mode = False
            try:
                model = get_peft_model(model, adapter, low_cpu_mem_usage=True)
            except ValueError as error:
                raise ConfigError(f"the adapter does not fit {name}: {error}") from error
    return ModelShape(
        name=name,
        config=found.get_text_config(),
        parameters=model.num_parameters(),
        trainable=model.num_parameters(only_trainable=True),
        layer=layer,
        active=layer - idle,
        embedding=embedding,
        attention_layers=len(layers) - kinds.count("linear_attention"),
        query_norm=any(name.endswith("q_norm.weight") for name, _ in layers.named_parameters()),
        obstacle=obstacle,
        dtype=str(found.dtype or torch.float32).removeprefix("torch."),
        lora=adapter is not None,
    )


def idle_parameters(layer: Any, chosen: int) -> int:
    """Count the parameters of the experts that are not among the `chosen` ones of a token."""
    experts = [weight for name, weight in layer.named_parameters() if ".experts." in name]
    # The first dimension of their weights is the expert.
    return sum(weight.numel() // len(weight) * (len(weight) - chosen) for weight in experts)


def parameters_of(name: str) -> int:
    """Count the parameters of the (embedding) model `name`; ConfigError if it is unknown."""
    import torch
    from transformers import AutoModel

    with torch.device("meta"):
        return int(AutoModel.from_config(find_config(name)).num_parameters())


@dataclass(frozen=True, slots=True)
class Launch:
    """Processes, and what each of them holds a share of."""

    name: str  # single, ddp, fsdp, zero1, zero2 or zero3
    processes: int
    shards: int = 1
    stage: int = 0  # ZeRO's; FSDP2's is 3, or 2 if weights stay gathered after the forward pass
    nodes: int = 1

    def share(self, stage: int) -> float:
        """Return the fraction that one process holds of what is sharded from `stage` on."""
        return 1 / self.shards if self.stage >= stage else 1.0


def read_launch(path: str | None, processes: int | None) -> Launch:
    """Read an accelerate config, a file or a shipped one's name; None is DDP on one node.

    `processes` overrides the file, as ``accelerate launch --num_processes`` does.
    """
    from accelerate.commands.config.config_args import load_config_from_file

    if path is None:
        return Launch("ddp" if (processes or 1) > 1 else "single", processes or 1)
    try:
        config: Any = load_config_from_file(str(find_file("dry_run_launcher", path, "accelerate")))
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"dry_run_launcher={path}: not an accelerate config. {error}") from error
    check_parallelism(config.parallelism_config)
    count = processes or config.num_processes
    nodes = max(config.num_machines, ceil(count / NODE))
    kind = str(getattr(config.distributed_type, "value", config.distributed_type))
    if kind in ("NO", "MULTI_GPU", "MULTI_CPU"):
        return Launch("ddp" if count > 1 else "single", count, nodes=nodes)
    if kind == "DEEPSPEED":
        stage = int(config.deepspeed_config.get("zero_stage", 2))
        return Launch(f"zero{stage}" if stage else "ddp", count, count, stage, nodes)
    settings = config.fsdp_config
    if kind != "FSDP" or str(settings.get("fsdp_version", 1)) != "2":
        raise ConfigError(
            f"dry_run_launcher={path}: {kind} is not supported. Use NO, MULTI_GPU, DEEPSPEED, or "
            "FSDP with fsdp_version: 2."
        )
    shards = int(config.parallelism_config.get("parallelism_config_dp_shard_size", count))
    stage = WEIGHTS if settings.get("fsdp_reshard_after_forward", True) else GRADIENTS
    return Launch("fsdp", count, shards, stage, nodes)
