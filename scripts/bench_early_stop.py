"""Does a policy that may end its reading stop when it knows?

    python scripts/bench_early_stop.py [--seeds 3] [--costs 0 0.3] [--out runs/early_stop]

For every seed, one cold start of the demo's tiny policy in a world where the evidence of half of
the tasks stands in the first third and of the others in the last; its expert, once it knows the
answer, ends the reading at 30% of the steps. From there GRPO with the same tasks:

- ``full``: without the action, so every chunk is read;
- ``cost C``: with it (``early_stop``), and a reward times 1 - C * (share that was read).

On held-out tasks of both kinds the table has EM and steps an episode: the frontier over calls.
Trained folders in OUT are used again. The last line is JSON; the exit status is 0 if for every seed
the policy of the highest cost has EM within a point of ``full``, at no more than half of its steps
where the evidence is early, and at no less than 90% of them where it is late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import command_line, evaluate_variants, last_line
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from atommem.demo.recipe import FULL, Recipe, quick
from atommem.demo.run import Demo
from atommem.envs.scoring.records import compare
from atommem.envs.synthetic.expert import Faults
from atommem.envs.synthetic.world import generate

MOST_LOST, MOST_STEPS, LEAST_STEPS = 0.01, 0.5, 0.9
STOPPING = {"early_stop": ("true",)}
WORLD = replace(FULL.world, distractors=7, corrections=0.0, evidence="mixed")
FAULTS = Faults(create=0.45, read=0.2, scratchpad=0.05, stop=0.7)
RECIPE = replace(
    FULL, world=WORLD, cold_start=replace(FULL.cold_start, faults=FAULTS), settings=STOPPING
)


def train(
    folder: Path, variants: Mapping[str, Mapping[str, Any]], seed: int, recipe: Recipe
) -> None:
    """Train the policy of each variant from one cold start, unless it is there."""
    console, start = Console(highlight=False), folder / "cold_start"
    if not start.is_dir():
        demo = Demo(recipe, folder, seed, console)
        demo.learn_to_copy()
        demo.cold_start()
    for name, settings in variants.items():
        if not (folder / name / "grpo" / "config.json").is_file():
            changed = replace(recipe, settings={**recipe.settings, **settings})
            demo = Demo(changed, folder / name, seed, console)
            demo.model = AutoModelForCausalLM.from_pretrained(start)
            demo.tokenizer = AutoTokenizer.from_pretrained(start)
            demo.grpo()


def main(argv: Sequence[str] | None = None) -> int:
    """Train, evaluate, print the table and the JSON line."""
    parser = command_line(__doc__, n=4, seeds=1, costs=[0.3])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--costs", type=float, nargs="+", default=[0.0, 0.3])
    parser.add_argument("--n", type=int, default=300, help="held-out tasks of each kind")
    parser.add_argument("--out", type=Path, default=Path("runs/early_stop"))
    options = parser.parse_args(argv)
    recipe = quick(RECIPE) if options.quick else RECIPE
    variants: dict[str, Mapping[str, Any]] = {"full": {"early_stop": ("false",)}}
    variants |= {f"cost_{cost:g}": {"step_cost": (str(cost),)} for cost in options.costs}
    judged = f"cost_{max(options.costs):g}"
    figures: dict[str, Any] = {}
    wrong = []
    for seed in range(options.seeds):
        folder = options.out / f"seed{seed}"
        train(folder, variants, seed, recipe)
        for place in ("early", "late"):
            tasks = list(generate(replace(WORLD, evidence=place), options.n, 1_000_001 + seed))
            given = {"temperature": 1.0, "seed": seed}
            results = {
                name: asyncio.run(
                    evaluate_variants(folder / name / "grpo", tasks, {name: {}}, **given)
                )[name]
                for name in variants
            }
            steps = {name: item.summary()["means"]["steps"] for name, item in results.items()}
            for name, item in results.items():
                share = steps[name] / steps["full"]
                gap = compare(results["full"].records, item.records).difference
                assert gap is not None, "every task has a score"
                found = {"em": item.em, "steps": steps[name], "share": share}
                found |= {"difference": gap.difference, "low": gap.low, "high": gap.high}
                figures[f"seed{seed} {place} {name}"] = found
                print(
                    f"seed {seed}  {place:<6}{name:<10}EM {item.em:.3f}  {gap.difference:+.3f} "
                    f"[{gap.low:+.3f}, {gap.high:+.3f}]  {steps[name]:.2f} steps ({share:.0%})"
                )
                fits = share <= MOST_STEPS if place == "early" else share >= LEAST_STEPS
                if name == judged and not (fits and gap.difference >= -MOST_LOST):
                    wrong.append(f"seed {seed}, {place}")
    holds = options.quick or not wrong
    result = {"bench": "early_stop", "n": options.n, **figures, "missed": wrong}
    return last_line({**result, "holds": holds})


if __name__ == "__main__":
    raise SystemExit(main())
