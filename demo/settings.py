"""What the demo's YAML file says, for one run of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from accelerate import PartialState
from trl import ModelConfig, TrlParser

from atommem.config import EmbedderConfig, MemoryConfig
from atommem.demo.recipe import FULL
from atommem.demo.worlds import World, world_of
from atommem.environment import find_environment
from atommem.train.settings import Settings
from atommem.train.train_config import TrainConfig


def load_settings(
    out: Path,
    seed: int,
    updates: int | None,
    capacity: int | None = None,
    world: World | None = None,
    changed: Mapping[str, Sequence[str]] | None = None,
) -> Settings:
    """Read the world's YAML file for a run in `out`, with a store of at most `capacity` entries.

    Args:
        changed: Further fields with other values than the file's, as words of a command line.
    """
    world = world or world_of(FULL.world)
    own = find_environment(world.environment).config_class
    parser = TrlParser((TrainConfig, MemoryConfig, EmbedderConfig, own, ModelConfig))
    arguments = ["--config", str(world.grpo_config), "--output_dir", str(out), "--seed", str(seed)]
    if updates is not None:
        arguments += ["--max_steps", str(updates)]
    if capacity is not None:
        arguments += ["--capacity", str(capacity)]
    for name, words in (changed or {}).items():
        arguments += [f"--{name}", *words]
    settings = Settings(*parser.parse_args_and_config(arguments))
    ranks = PartialState().num_processes
    if ranks > 1:  # the file's batch is that of all
        arguments += ["--per_device_train_batch_size", str(settings.args.per_device_train_batch_size // ranks)]
        settings = Settings(*parser.parse_args_and_config(arguments))
    return settings
