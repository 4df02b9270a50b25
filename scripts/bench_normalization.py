"""Whose gradient trains a policy of uneven episodes, and which normalization learns most?

    python scripts/bench_normalization.py [--worlds web questions] [--seeds 1] [--out FOLDER]

Two worlds of the demo where episodes differ in length: a site to browse (`atommem demo --web`, 1 to
7 steps), and documents with 1 to 5 questions (2 to 17 steps). From one cold start a seed, GRPO runs
with each normalization of the loss; nothing else differs. Printed for each: held-out EM, and the
share of the gradient's weight in each quarter of the episodes, fewest steps first. Runs that are in
the output folder are not repeated. About 15 minutes a world and seed on two idle cores. The last
line is JSON; the exit status is 0 if every run learned (EM above the cold start).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from common import command_line, last_line
from rich.console import Console
from transformers import AutoModelForCausalLM

from atommem.demo.recipe import FULL, WEB, Recipe, quick
from atommem.demo.run import Demo
from atommem.envs.scoring.records import EvalResult, compare
from atommem.eval.output import EPISODES, parse_records
from atommem.train.console import METRICS_FILE, read_metrics
from atommem.train.objective.shares import QUARTERS

NORMALIZATIONS = ("token", "step", "trajectory")
WORLDS: dict[str, Recipe] = {
    "web": WEB,
    "questions": replace(
        FULL,
        size=replace(FULL.size, max_positions=512),
        world=replace(FULL.world, questions=(1, 5), distractors=1),
    ),
}


def train(recipe: Recipe, folder: Path, seed: int, start: Path | None = None) -> EvalResult:
    """Make a cold start in `folder`, or train the one in `start`, and evaluate it."""
    name = "before" if start is None else "after"
    found = folder / "eval" / name / EPISODES
    if not found.is_file():
        demo, copied = Demo(recipe, folder, seed, Console(highlight=False)), folder / "copied"
        if start is None:
            if copied.is_dir():
                demo.model = AutoModelForCausalLM.from_pretrained(copied)
            else:
                demo.learn_to_copy()
                demo.model.save_pretrained(copied)
            demo.cold_start()
        else:
            demo.model = AutoModelForCausalLM.from_pretrained(start / "cold_start")
            demo.grpo()
        return demo.evaluate(name)
    return EvalResult(tuple(parse_records(found.read_bytes(), found).values()))


def main(argv: Sequence[str] | None = None) -> int:
    """Train, print a line for each run and the JSON line."""
    parser = command_line(__doc__, seeds=1)
    parser.add_argument("--worlds", nargs="*", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--seeds", type=int, default=1, help="seeds of each world")
    parser.add_argument("--out", type=Path, default=Path("runs/bench_normalization"))
    options = parser.parse_args(argv)
    runs: list[dict[str, Any]] = []
    for world, seed in ((w, s) for w in options.worlds for s in range(options.seeds)):
        recipe = quick(WORLDS[world]) if options.quick else WORLDS[world]
        folder = options.out / f"{world}{'-quick' if options.quick else ''}-{seed}"
        before = train(recipe, folder, seed)
        results = {}
        for name in NORMALIZATIONS:
            changed = replace(recipe, settings={**recipe.settings, "normalization": (name,)})
            out = folder.with_name(f"{folder.name}-{name}")
            results[name] = train(changed, out, seed, folder)
            updates = read_metrics(out / "grpo" / METRICS_FILE)
            shares = {
                key: [round(_mean(updates, f"{key}_{q}"), 3) for q in QUARTERS]
                for key in ("gradient_share/steps", "above_mean/steps")
            }
            paired = compare(results["token"].records, results[name].records)
            figures = {"em": results[name].em, "em_before": before.em, "p": paired.p_value}
            runs.append({"world": world, "seed": seed, "normalization": name, **figures, **shares})
            print(
                f"{world:<10} seed {seed} {name:<11}EM {before.em:.3f} -> {results[name].em:.3f}  "
                f"(against token p {paired.p_value:.2f})  gradient {shares}",
                flush=True,
            )
    holds = options.quick or all(run["em"] > run["em_before"] for run in runs)
    return last_line({"bench": "normalization", "runs": runs, "holds": holds})


def _mean(updates: Sequence[dict[str, Any]], key: str) -> float:
    return float(np.mean([entry[key] for entry in updates if key in entry] or [float("nan")]))


if __name__ == "__main__":
    raise SystemExit(main())
