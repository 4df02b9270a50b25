"""How processes share a model: read from the accelerate config that the run is started with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from atommem.errors import ConfigError
from atommem.plugins import find_file

OPTIMIZER, GRADIENTS, WEIGHTS = 1, 2, 3
"""What is sharded from which of ZeRO's stages on."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Processes, and what each of them holds a share of.

    `stage` is ZeRO's, or what FSDP2 does in its terms: 3, and 2 where weights stay gathered after the forward pass.
    """

    name: str  # single, ddp, fsdp, zero1, zero2, zero3
    processes: int  # of all machines together
    shards: int = 1  # processes that share one copy of what is sharded
    stage: int = 0
    offload: bool = False  # weights and optimizer wait in the host's memory
    source: str = "no launcher: one node"  # the file, or what stands in for it

    def share(self, stage: int) -> float:
        """The part that one process holds of what is sharded from `stage` on."""
        return 1 / self.shards if self.stage >= stage else 1.0


def read_launch(path: str | None, processes: int | None) -> Launch:
    """The launch that an accelerate config describes: a file, or a shipped one's name; none is DDP on one node.

    `processes` wins over the file's, as ``accelerate launch --num_processes`` does.

    Raises:
        ConfigError: The file is missing or no accelerate config, names no number of processes, or asks for
            something that training does not support.
    """
    if path is None:
        return Launch("ddp" if (processes or 1) > 1 else "single", processes or 1)
    config = _load(path)
    count = processes or config.num_processes
    if count < 1:
        raise ConfigError(f"{path} has no num_processes: add it, or give --dry_run_processes.")
    if count % config.num_machines:
        raise ConfigError(
            f"{path}: {count} processes cannot be spread evenly over {config.num_machines} machines."
        )
    kind = str(getattr(config.distributed_type, "value", config.distributed_type))
    if kind in ("NO", "MULTI_GPU", "MULTI_CPU"):
        return Launch("ddp" if count > 1 else "single", count, source=path)
    if kind == "DEEPSPEED":
        given = config.deepspeed_config
        offload = any(
            given.get(f"offload_{what}_device", "none") != "none" for what in ("optimizer", "param")
        )
        stage = int(given.get("zero_stage", 2))
        return Launch(f"zero{stage}" if stage else "ddp", count, count, stage, offload, path)
    if kind != "FSDP":
        raise ConfigError(
            f"{path}: distributed_type {kind} is not supported: give NO, MULTI_GPU, FSDP or DEEPSPEED."
        )
    given = config.fsdp_config
    if str(given.get("fsdp_version", 1)) != "2":
        raise ConfigError(f"{path}: fsdp_version is not 2: training supports FSDP2 only.")
    if given.get("fsdp_activation_checkpointing"):
        raise ConfigError(
            f"{path}: fsdp_activation_checkpointing is on: leave it off and set gradient_checkpointing in the recipe."
        )
    shards = int(config.parallelism_config.get("parallelism_config_dp_shard_size", count))
    stage = WEIGHTS if given.get("fsdp_reshard_after_forward", True) else GRADIENTS
    return Launch("fsdp", count, shards, stage, bool(given.get("fsdp_offload_params", False)), path)


def _load(path: str) -> Any:
    from accelerate.commands.config.config_args import load_config_from_file

    try:
        return load_config_from_file(str(find_file("dry_run_launcher", path, "accelerate")))
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is no accelerate config: {error}") from error
