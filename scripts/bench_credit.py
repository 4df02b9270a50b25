"""Does credit for parts of an episode teach forgetting better than credit for the whole?

    OMP_NUM_THREADS=1 python scripts/bench_credit.py --start runs/demo_bounded [--updates 120] [--out runs/credit]

From one cold start (of ``atommem demo --bounded``: `RUN/cold_start`), GRPO on its world with the settings of `ARMS`,
each once, with the seed 0: as many updates of as many tasks, but not of as many tokens, since rerolls sample more. Then
EM, sampled at temperature 1, on 300 held-out tasks of the demo, and on 300 of a harder world, where twice as much is
told as fits into five entries. What is there already is not trained again.

No bar: the last line is one JSON object, whose "holds" says that every arm ended above the cold start. Weak: one seed,
and a policy of 0.2 million parameters whose episodes have some ten steps.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from quick import add_quick, command_line, last_line
from rich.console import Console

from atommem.demo.recipe import BOUNDED, Recipe, quick
from atommem.demo.run import Demo
from atommem.envs.scoring.statistics import wilson_interval
from atommem.envs.synthetic.world import generate
from atommem.policy.local import LocalPolicy
from atommem.train.watch.callbacks import METRICS_FILE, read_metrics

ARMS: dict[str, dict[str, tuple[str, ...]]] = {
    "trajectory": {},
    "steps": {"credit": ("steps",)},
    "rerolls": {"rerolls": ("4",)},
    "compression": {"compression_reward": ("0.1",)},
}
HARD = 5
"""Entries of the harder world's store."""


def train(recipe: Recipe, start: Path, folder: Path) -> None:
    """GRPO from the policy in `start`."""
    demo = Demo(replace(recipe, heldout=1), folder, 0, Console(highlight=False))
    first = LocalPolicy.from_pretrained(start)
    demo.model, demo.tokenizer = first.model, first.tokenizer
    demo.grpo()


def measure(recipe: Recipe, policy: Path, folder: Path) -> dict[str, Any]:
    """EM on both worlds."""
    hard = replace(recipe, settings={"capacities": (str(HARD),)})
    tasks = list(generate(replace(recipe.world, distractors=2 * HARD, capacity=HARD), recipe.heldout, 105))
    found = {}
    for name, of, asked in (("own", recipe, None), ("harder", hard, tasks)):
        demo = Demo(of, folder / name, 0, Console(highlight=False))
        loaded = LocalPolicy.from_pretrained(policy)
        demo.model, demo.tokenizer = loaded.model, loaded.tokenizer
        em = demo.evaluate("measured", asked).em
        low, high = wilson_interval(round(em * recipe.heldout), recipe.heldout)
        found[name] = {"em": round(em, 3), "interval": (round(low, 3), round(high, 3))}
    return found


def main() -> int:
    """Train and measure every arm."""
    parser = command_line(__doc__)
    parser.add_argument("--start", type=Path, help="folder of a run of atommem demo --bounded (unset: it is run)")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--updates", type=int, default=BOUNDED.updates)
    parser.add_argument("--out", type=Path, default=Path("runs/credit"))
    add_quick(parser, updates=1, arms=["rerolls"])
    options = parser.parse_args()
    recipe = replace(quick(BOUNDED) if options.quick else BOUNDED, updates=options.updates)
    start = (options.start or options.out / "demo") / "cold_start"
    if options.start is None and not start.is_dir():
        demo = Demo(recipe, options.out / "demo", 0, Console(highlight=False))
        demo.learn_to_copy()
        demo.cold_start()
    result: dict[str, Any] = {"cold start": measure(recipe, start, options.out / "before")}
    for arm in options.arms:
        folder = options.out / arm
        if not (folder / "grpo" / "model.safetensors").is_file():
            train(replace(recipe, settings={**recipe.settings, **ARMS[arm]}), start, folder)
        updates = [entry for entry in read_metrics(folder / "grpo" / METRICS_FILE) if "loss" in entry]
        seconds = sum(entry["seconds/rollout"] + entry["seconds/train"] for entry in updates)
        result[arm] = measure(recipe, folder / "grpo", folder / "after") | {"seconds": round(seconds)}
        print(arm, result[arm], flush=True)
    before = result["cold start"]["own"]["em"]
    result["holds"] = all(result[arm]["own"]["em"] > before for arm in options.arms)
    return last_line({"bench": "credit", **result})


if __name__ == "__main__":
    sys.exit(main())
