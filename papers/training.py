"""Train the demo's policy with the settings of an experiment."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from atommem.demo.recipe import Recipe
from atommem.demo.run import Demo
from atommem.policy.local import LocalPolicy


def train_cold_start(out: Path, seed: int, recipe: Recipe) -> Path:
    """Pretrain and cold-start a policy in `out` unless it exists; returns its folder."""
    folder = out / "cold_start"
    if not (folder / "atommem_config.json").is_file():
        demo = Demo(recipe, out, seed, Console(width=120))
        demo.learn_to_copy()
        demo.cold_start()
    return folder


def load_demo(policy: Path, recipe: Recipe, out: Path, seed: int = 0) -> Demo:
    """Make a demo in `out` that starts from the policy in a folder, with its vocabulary."""
    demo = Demo(recipe, out, seed, Console(highlight=False, soft_wrap=True))
    loaded = LocalPolicy.from_pretrained(policy)
    demo.model, demo.tokenizer = loaded.model, loaded.tokenizer
    return demo
