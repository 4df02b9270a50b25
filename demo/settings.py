"""What the demo's YAML file says, for one run of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from accelerate import PartialState

from atommem.demo.recipe import Recipe
from atommem.demo.worlds import world_of
from atommem.train.settings import Settings, parse


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
    words = {"output_dir": [str(out)], "seed": [str(seed)], **recipe.settings, **(changed or {})}
    for name, value in (("max_steps", recipe.updates), ("capacity", recipe.capacity)):
        if value is not None:
            words[name] = [str(value)]
    arguments = ["--config", str(world_of(recipe.world).grpo_config)]
    arguments += [word for name in words for word in (f"--{name}", *words[name])]
    settings = parse("grpo", arguments)
    ranks = PartialState().num_processes
    if ranks > 1:  # the file's batch is that of all
        batch = settings.args.per_device_train_batch_size // ranks
        settings = parse("grpo", [*arguments, "--per_device_train_batch_size", str(batch)])
    return settings
