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

from dataclasses import replace
from pathlib import Path
from typing import Any

from quick import add_quick, command_line, last_line
from tiny_policy import cold_start, taken_up

from atommem.demo.recipe import BOUNDED, Recipe, quick
from atommem.envs.scoring.statistics import wilson_interval
from atommem.envs.synthetic.world import generate
from atommem.train.logs.console import METRICS_FILE, read_metrics

ARMS: dict[str, dict[str, tuple[str, ...]]] = {
    "trajectory": {},
    "steps": {"credit": ("steps",)},
    "rerolls": {"rerolls": ("4",)},
    "compression": {"compression_reward": ("0.1",)},
}
HARD = 5
"""Entries of the harder world's store."""


def measure(recipe: Recipe, policy: Path, folder: Path) -> dict[str, Any]:
    """EM on both worlds."""
    hard = replace(recipe, settings={"capacities": (str(HARD),)})
    tasks = list(
        generate(replace(recipe.world, distractors=2 * HARD, capacity=HARD), recipe.heldout, 105)
    )
    found = {}
    for name, of, asked in (("own", recipe, None), ("harder", hard, tasks)):
        em = taken_up(policy, of, folder / name).evaluate("measured", asked).em
        low, high = wilson_interval(round(em * recipe.heldout), recipe.heldout)
        found[name] = {"em": round(em, 3), "interval": (round(low, 3), round(high, 3))}
    return found


def main() -> int:
    """Train and measure every arm."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--start", type=Path, help="folder of a run of atommem demo --bounded (unset: it is run)"
    )
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--updates", type=int, default=BOUNDED.updates)
    parser.add_argument("--out", type=Path, default=Path("runs/credit"))
    add_quick(parser, updates=1, arms=["rerolls"])
    options = parser.parse_args()
    recipe = replace(quick(BOUNDED) if options.quick else BOUNDED, updates=options.updates)
    start = (
        options.start / "cold_start"
        if options.start
        else cold_start(options.out / "demo", 0, recipe)
    )
    result: dict[str, Any] = {"cold start": measure(recipe, start, options.out / "before")}
    for arm in options.arms:
        folder = options.out / arm
        if not (folder / "grpo" / "model.safetensors").is_file():
            trained = replace(recipe, settings={**recipe.settings, **ARMS[arm]}, heldout=1)
            taken_up(start, trained, folder).grpo()
        updates = [
            entry for entry in read_metrics(folder / "grpo" / METRICS_FILE) if "loss" in entry
        ]
        seconds = sum(entry["seconds/rollout"] + entry["seconds/train"] for entry in updates)
        result[arm] = measure(recipe, folder / "grpo", folder / "after") | {
            "seconds": round(seconds)
        }
        print(arm, result[arm], flush=True)
    before = result["cold start"]["own"]["em"]
    result["holds"] = all(result[arm]["own"]["em"] > before for arm in options.arms)
    return last_line({"bench": "credit", **result})


if __name__ == "__main__":
    raise SystemExit(main())
