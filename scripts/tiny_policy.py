"""The demo's policy before GRPO, in a size that vLLM serves on CPU: what benches with a live server start from.

python scripts/tiny_policy.py OUT_DIR [--seed N]
"""

from __future__ import annotations

from pathlib import Path

from quick import command_line
from rich.console import Console

from atommem.demo.recipe import PolicySize, Recipe
from atommem.demo.run import Demo
from atommem.policy.local import LocalPolicy

RECIPE = Recipe(size=PolicySize(heads=2, head_width=32))
"""The demo's with two heads instead of four and more of both lessons: what the figures of those benches are of."""


def cold_start(out: Path, seed: int, recipe: Recipe = RECIPE) -> Path:
    """Pretrain and cold-start a policy in `out`, unless it is there; returns its folder. Four minutes of a core."""
    folder = out / "cold_start"
    if not (folder / "atommem_config.json").is_file():
        demo = Demo(recipe, out, seed, Console(width=120))
        demo.learn_to_copy()
        demo.cold_start()
    return folder


def taken_up(start: Path, recipe: Recipe, out: Path, seed: int = 0) -> Demo:
    """A demo in `out` that goes on from the policy in the folder `start`, whose vocabulary's order is its own."""
    demo = Demo(recipe, out, seed, Console(highlight=False, soft_wrap=True))
    policy = LocalPolicy.from_pretrained(start)
    demo.model, demo.tokenizer = policy.model, policy.tokenizer
    return demo


def main(argv: list[str] | None = None) -> int:
    """Make the policy and print its folder."""
    parser = command_line(__doc__)
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    print(cold_start(arguments.out, arguments.seed))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
