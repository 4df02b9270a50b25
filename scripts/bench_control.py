"""The demo's control: what GRPO adds where the cold start imitates an expert that forgets nothing.

    python scripts/bench_control.py [--web] [--seeds 0 1 2] [--out DIR]

The demo's cold start imitates an expert that is made faulty on purpose (`ColdStart.faults`), so that there is
something left to learn. A reader will ask what the faultless one would have taught: the same policy, tasks and
updates, with the cold start from demonstrations without faults, and held-out EM before and after GRPO, beside the
demo's own. Ten minutes a seed on two cores, with --web (the demo of the web) half an hour. There is no bar: the
figures are what they are; "holds" is true if every run has ended.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from quick import add_quick, command_line, last_line
from rich.console import Console

from atommem.demo.recipe import FULL, WEB, Recipe, quick
from atommem.demo.run import Demo
from atommem.envs.scoring.statistics import wilson_interval

EXPERTS = ("faulty", "faultless")


def run(recipe: Recipe, expert: str, seed: int, out: Path) -> dict[str, Any]:
    """Cold start and GRPO; held-out EM before and after, each with its 95% interval."""
    if expert == "faultless":
        faults = type(recipe.cold_start.faults)()
        recipe = replace(recipe, cold_start=replace(recipe.cold_start, faults=faults))
    demo = Demo(recipe, out, seed, Console(width=120))
    demo.learn_to_copy()
    demo.cold_start()
    before = demo.evaluate("before")
    demo.grpo()
    after = demo.evaluate("after")
    count = len(demo.heldout)
    return {
        name: {
            "em": em,
            "interval": [round(end, 3) for end in wilson_interval(round(em * count), count)],
        }
        for name, em in (("before", before.em), ("after", after.em))
    }


def main() -> int:
    """Run both experts for every seed, print the table and the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--experts", nargs="+", choices=EXPERTS, default=list(EXPERTS))
    parser.add_argument("--web", action="store_true", help="the demo of the web")
    parser.add_argument(
        "--out", type=Path, help="where policies and traces go (unset: a temporary folder)"
    )
    add_quick(parser, seeds=[0], experts=["faultless"])
    options = parser.parse_args()
    recipe = WEB if options.web else FULL
    found: dict[str, dict[int, Any]] = {name: {} for name in options.experts}
    with tempfile.TemporaryDirectory() as scratch:
        for seed in options.seeds:
            for name in options.experts:
                out = (options.out or Path(scratch)) / f"{name}-{seed}"
                found[name][seed] = run(quick(recipe) if options.quick else recipe, name, seed, out)
    print(f"{'expert':<10} {'seed':>4}  {'cold start':>10}  {'after GRPO':>10}")
    for name, runs in found.items():
        for seed, figures in runs.items():
            print(
                f"{name:<10} {seed:>4}  {figures['before']['em']:>10.3f}  {figures['after']['em']:>10.3f}"
            )
    return last_line({"bench": "control", **found, "holds": True})


if __name__ == "__main__":
    raise SystemExit(main())
