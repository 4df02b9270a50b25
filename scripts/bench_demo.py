"""Does the demo learn what it claims, on several seeds?

    python scripts/bench_demo.py [--recipe limited|bounded|web|injected|blind] [--seeds 0 1 2]
    [--control]

Runs `atommem demo` once a seed (4 to 20 minutes on two idle cores) and prints exact match on
held-out tasks before and after GRPO, with the seconds of every phase. With --control the cold start
imitates an expert that makes no mistakes (the demo's own makes some on purpose, so that there is
something to learn): what GRPO adds to the strongest imitation.

The bar: at most .5 before and at least .9 after GRPO with every seed (web: .8); a control has none.
The last line is JSON; the exit status is 0 if its "holds" is true.
"""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import ATOMMEM, command_line, last_line

RECIPES = ("full", "limited", "bounded", "web", "injected")
MOST_BEFORE, LEAST_AFTER = 0.5, 0.9


def run_command(recipe: str, seed: int, out: Path, is_quick: bool) -> dict[str, Any]:
    """Run `atommem demo` and read its summary."""
    words = [*ATOMMEM, "demo", "--seed", str(seed), "--out", str(out)]
    words += [f"--{recipe}"] * (recipe != "full") + ["--quick"] * is_quick
    subprocess.run(words, check=True)
    found: dict[str, Any] = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    return found


def run_control(recipe: str, seed: int, out: Path, is_quick: bool) -> dict[str, Any]:
    """Run the demo with a cold start from an expert without faults."""
    from rich.console import Console

    from atommem.demo import recipe as recipes
    from atommem.demo.run import run_demo

    chosen = getattr(recipes, recipe.upper())
    chosen = recipes.quick(chosen) if is_quick else chosen
    faultless = type(chosen.cold_start.faults)()
    cold_start = replace(chosen.cold_start, faults=faultless)
    chosen = replace(chosen, cold_start=cold_start, ablations=())
    return run_demo(chosen, out, seed, Console(highlight=False, soft_wrap=True))


def main() -> int:
    """Run every seed."""
    parser = command_line(__doc__, seeds=[0])
    parser.add_argument("--recipe", choices=RECIPES, default="full")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/bench_demo"))
    options = parser.parse_args()
    run = run_control if options.control else run_command
    seeds: dict[int, dict[str, Any]] = {}
    for seed in options.seeds:
        began = time.perf_counter()
        name = f"{options.recipe}{'_control' * options.control}_{seed}"
        summary = run(options.recipe, seed, options.out / name, options.quick)
        seeds[seed] = {key: value for key, value in summary.items() if key.startswith("em_")}
        seeds[seed]["seconds"] = round(time.perf_counter() - began, 1)
        print(json.dumps({seed: seeds[seed]}), flush=True)
    least = 0.8 if options.recipe == "web" else LEAST_AFTER
    learned = all(
        found["em_before"] <= MOST_BEFORE and found["em_after"] >= least for found in seeds.values()
    )
    holds = options.quick or options.control or learned
    return last_line({"bench": "demo", "recipe": options.recipe, "seeds": seeds, "holds": holds})


if __name__ == "__main__":
    raise SystemExit(main())
