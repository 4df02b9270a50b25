"""Does a policy that may end its reading stop when it knows?

    python scripts/bench_early_stop.py --start runs/demo/cold_start [--seed 0 1 2] [--costs 0.3]

The world of ``atommem demo`` with more to read and without corrections: the evidence of half of the
tasks stands in the first third, of the others in the last. The cold start has an expert that
forgets nothing and ends the reading, once it knows the answer, at 30% of the steps, and before at
3%; asked without knowing, it writes nothing and reads on. (After an expert that forgets entries
too, GRPO learns never to stop.) From there GRPO with the action (``early_stop``) and a reward
times 1 - cost * (share that was read). With ``--start`` the demo's cold start of seed 0 is where
all seeds begin, and saves most of the time; else every seed learns to copy first. The same command
continues: what is trained or measured in OUT is used again.

On held-out tasks of both kinds the table compares the trained policy with itself where it may not
stop: EM, steps, and the sign-flip interval of their difference: the frontier over costs. The last
line is JSON; the exit status is 0 if with one of the costs, for every seed, EM is within a point,
at no more than half of the steps where the evidence is early and at no less than 90% of them where
it is late. GRPO takes 640 updates; after 320, seed 1 missed the bar, late (-1.3 points).
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from common import evaluate_variants, last_line, read_options
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from atommem.demo.recipe import FULL, Recipe, quick
from atommem.demo.run import Demo
from atommem.envs.scoring.records import compare
from atommem.envs.synthetic.expert import Faults
from atommem.envs.synthetic.world import generate
from atommem.files import write_json

MOST_LOST, MOST_STEPS, LEAST_STEPS = 0.01, 0.5, 0.9
WORLD = replace(FULL.world, distractors=7, corrections=0.0, evidence="mixed")
FAULTS = Faults(stop=0.7, wait=0.03)
RECIPE = replace(
    FULL,
    world=WORLD,
    cold_start=replace(FULL.cold_start, faults=FAULTS),
    settings={"early_stop": ("true",), "per_device_train_batch_size": ("128",)},
    updates=640,
)
SHORT = replace(RECIPE.cold_start, episodes=2000, steps=300, learning_rate=2e-3)
"""For a policy that knows the demo's world, and has to learn one more action."""


def copy_weights(demo: Demo, start: Path) -> None:
    """Give the demo's model the weights of another vocabulary's, row by row of common words."""
    ids = AutoTokenizer.from_pretrained(start).get_vocab()
    known = AutoModelForCausalLM.from_pretrained(start).state_dict()
    with torch.no_grad():
        for name, value in demo.model.state_dict().items():
            if value.shape == known[name].shape:
                value.copy_(known[name])
                continue
            for word, row in demo.tokenizer.get_vocab().items():
                if word in ids:
                    value[row] = known[name][ids[word]]


def train(
    folder: Path, costs: Sequence[float], seed: int, recipe: Recipe, start: Path | None
) -> None:
    """Train a policy for each cost, unless it is there."""
    console, cold = Console(highlight=False), folder / "cold_start"
    if not (cold / "config.json").is_file():
        demo = Demo(recipe, folder, seed, console)
        if start is None:
            demo.learn_to_copy()
        else:
            copy_weights(demo, start)
        demo.cold_start()
    for cost in costs:
        if not (folder / f"cost_{cost}" / "grpo" / "config.json").is_file():
            changed = replace(recipe, settings={**recipe.settings, "step_cost": (str(cost),)})
            demo = Demo(changed, folder / f"cost_{cost}", seed, console)
            demo.model = AutoModelForCausalLM.from_pretrained(cold)
            demo.tokenizer = AutoTokenizer.from_pretrained(cold)
            demo.grpo()


def main() -> int:
    options = read_options(
        __doc__,
        **{"start": Path, "seed": ([0, 1, 2], [0]), "costs": [0.3]},
        **{"n": (600, 4), "temperature": 1.0, "output_dir": Path("runs/early_stop")},
    )
    recipe = quick(RECIPE) if options.quick else RECIPE
    if options.start is not None and not options.quick:
        recipe = replace(recipe, cold_start=SHORT)
    figures: list[dict[str, Any]] = []
    missed: dict[float, list[str]] = {cost: [] for cost in options.costs}
    for seed in options.seed:
        folder = options.output_dir / f"seed{seed}"
        train(folder, options.costs, seed, recipe, options.start)
        for cost, place in product(options.costs, ("early", "late")):
            policy = folder / f"cost_{cost}" / "grpo"
            path = policy / f"{place}_{options.n}_{options.temperature}.json"
            if not path.is_file():
                write_json(path, measure(policy, place, options.n, seed, options.temperature))
            found = {"seed": seed, "cost": cost, "evidence": place, **json.loads(path.read_text())}
            figures.append(found)
            print(*(f"{name} {value}" for name, value in found.items()), sep="; ", flush=True)
            share = found["steps, stops"] / found["steps, reads on"]
            fits = share <= MOST_STEPS if place == "early" else share >= LEAST_STEPS
            if not (fits and found["difference"] >= -MOST_LOST):
                missed[cost].append(f"seed {seed}, {place}")
    holds = options.quick or not all(missed.values())
    result = {"bench": "early_stop", "n": options.n, "figures": figures}
    result["missed"] = {str(cost): places for cost, places in missed.items()}
    return last_line({**result, "holds": holds})


def measure(folder: Path, place: str, n: int, seed: int, temperature: float) -> dict[str, Any]:
    """Compare a trained policy with itself where it may not stop, on held-out tasks."""
    tasks = list(generate(replace(WORLD, evidence=place), n, 1_000_001 + seed))
    variants: dict[str, dict[str, Any]] = {"stops": {}, "reads on": {"early_stop": False}}
    results = asyncio.run(
        evaluate_variants(folder, tasks, variants, temperature=temperature, seed=seed)
    )
    found: dict[str, Any] = {}
    for name, result in results.items():
        steps = result.summary()["means"]["steps"]
        found |= {f"em, {name}": round(result.em, 4), f"steps, {name}": round(steps, 3)}
    gap = compare(results["reads on"].records, results["stops"].records).difference
    assert gap is not None, "every task has a score"
    return found | {"difference": gap.difference, "low": gap.low, "high": gap.high}


if __name__ == "__main__":
    raise SystemExit(main())
