"""What the demo's YAML file says, for one run of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from accelerate import PartialState
from trl import ModelConfig, TrlParser

from atommem.config import EmbedderConfig, MemoryConfig
from atommem.demo.recipe import Recipe
from atommem.demo.worlds import world_of
from atommem.environment import find_environment
from atommem.train.settings import Settings
from atommem.train.train_config import TrainConfig


def load_settings(
    out: Path, recipe: Recipe, seed: int = 0, changed: Mapping[str, Sequence[str]] | None = None
) -> Settings:
    """Read the YAML file of the recipe's world for a run in `out`.

    Args:
        out: Where GRPO writes.
        recipe: Its `settings`, `updates` and `capacity` are instead of the file's.
        seed: Of the run.
        changed: Further fields with other values than the file's, as words of a command line.
    """
    world = world_of(recipe.world)
    own = find_environment(world.environment).config_class
    parser = TrlParser((TrainConfig, MemoryConfig, EmbedderConfig, own, ModelConfig))
    words = {"output_dir": [str(out)], "seed": [str(seed)], **recipe.settings, **(changed or {})}
    for name, value in (("max_steps", recipe.updates), ("capacity", recipe.capacity)):
        if value is not None:
            words[name] = [str(value)]
    arguments = [
        "--config",
        str(world.grpo_config),
        *(word for name in words for word in (f"--{name}", *words[name])),
    ]
    settings = Settings(*parser.parse_args_and_config(arguments))
    ranks = PartialState().num_processes
    if ranks > 1:  # the file's batch is that of all
        arguments += [
            "--per_device_train_batch_size",
            str(settings.args.per_device_train_batch_size // ranks),
        ]
        settings = Settings(*parser.parse_args_and_config(arguments))
    return settings
