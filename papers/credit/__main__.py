"""Compare step-level credit, rerolls and a compression reward with trajectory credit.

    OMP_NUM_THREADS=1 python -m papers.credit --start runs/demo_bounded [--updates 120]

Each arm of `ARMS` trains once (seed 0) by GRPO from one cold start of ``atommem demo --bounded``
(``RUN/cold_start``), for the same number of updates and tasks. Rerolls sample more tokens. EM is
measured at temperature 1 on 300 held-out tasks of the demo, and on 300 of a harder world with
twice as many facts as five entries hold. Finished arms are not trained again.

The last line is a JSON object. "holds" means that every arm ended above the cold start.
Limits: one seed, a policy of 0.2 million parameters, episodes of about ten steps.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.console import Console

from atommem.demo.recipe import BOUNDED, Recipe, quick
from atommem.demo.run import Demo
from atommem.envs.scoring.statistics import wilson_interval
from atommem.envs.synthetic.world import generate
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from papers.credit.trainers import CompressionReward, Rerolls, StepCredit
from papers.inputs import load_demo

ARMS: dict[str, type[MemoryGRPOTrainer]] = {
    "trajectory": MemoryGRPOTrainer,
    "steps": StepCredit,
    "rerolls": Rerolls,
    "compression": CompressionReward,
}
HARD = 5
"""Entries of the harder world's store."""


def make_cold_start(out: Path, recipe: Recipe) -> Path:
    """Pretrain and cold-start a policy in `out` unless it exists; returns its folder."""
    folder = out / "cold_start"
    if not (folder / "atommem_config.json").is_file():
        demo = Demo(recipe, out, 0, Console(width=120))
        demo.learn_to_copy()
        demo.cold_start()
    return folder


def measure(recipe: Recipe, policy: Path, folder: Path) -> dict[str, Any]:
    """Measure EM on both worlds."""
    hard = replace(recipe, settings={"capacities": (str(HARD),)})
    world = replace(recipe.world, distractors=2 * HARD, capacity=HARD)
    tasks = list(generate(world, recipe.heldout, 105))
    found = {}
    for name, of, asked in (("own", recipe, None), ("harder", hard, tasks)):
        em = load_demo(policy, of, folder / name).evaluate("measured", asked).em
        low, high = wilson_interval(round(em * recipe.heldout), recipe.heldout)
        found[name] = {"em": round(em, 3), "interval": (round(low, 3), round(high, 3))}
    return found


def main() -> int:
    """Train and measure every arm; returns 0 if all beat the cold start."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    start = "Folder of a run of atommem demo --bounded; trained if unset."
    parser.add_argument("--start", type=Path, help=start)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--updates", type=int, default=BOUNDED.updates)
    parser.add_argument("--out", type=Path, default=Path("runs/credit"))
    parser.add_argument("--quick", action="store_true", help="One update of one arm: a smoke test.")
    options = parser.parse_args()
    recipe = BOUNDED
    if options.quick:
        options.updates, options.arms, recipe = 1, ["rerolls"], quick(BOUNDED)
    recipe = replace(recipe, updates=options.updates)
    if options.start:
        cold_start = options.start / "cold_start"
    else:
        cold_start = make_cold_start(options.out / "demo", recipe)
    result: dict[str, Any] = {"cold start": measure(recipe, cold_start, options.out / "before")}
    for arm in options.arms:
        folder = options.out / arm
        if not (folder / "grpo" / "model.safetensors").is_file():
            with patch("atommem.demo.run.MemoryGRPOTrainer", ARMS[arm]):
                load_demo(cold_start, replace(recipe, heldout=1), folder).grpo()
        lines = (folder / "grpo" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        updates = [entry for entry in map(json.loads, lines) if "loss" in entry]
        seconds = sum(entry["seconds/rollout"] + entry["seconds/train"] for entry in updates)
        measured = measure(recipe, folder / "grpo", folder / "after")
        result[arm] = {**measured, "seconds": round(seconds)}
        print(arm, result[arm], flush=True)
    before = result["cold start"]["own"]["em"]
    result["holds"] = all(result[arm]["own"]["em"] > before for arm in options.arms)
    print(json.dumps(result))
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
