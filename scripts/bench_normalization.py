"""Whose gradient trains a policy of uneven episodes, and which normalization learns most?

    python scripts/bench_normalization.py [--worlds web questions] [--shares] [--seeds 1]

Two worlds of the demo where episodes differ in length: a site to browse (`atommem demo --web`), and
documents with 1 to 5 questions.

1. Shares: for 64 tasks with 16 episodes of the faulty expert that the cold start imitates, the
   share of the gradient's weight in each quarter of the episodes, fewest steps first, and how many
   of the quarter are above their group's mean. `--shares` ends here, after a minute.
2. Learning: from one cold start a seed, GRPO with each normalization of the loss; nothing else
   differs. Held-out EM, and the mean shares of the run. Runs in the output folder are not
   repeated. About 15 minutes a world and seed on two idle cores.

The last line is JSON; the exit status is 0 if every run learned (EM above the cold start).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from common import last_line, read_options
from rich.console import Console
from transformers import AutoModelForCausalLM

from atommem.demo.recipe import FULL, WEB, Recipe, make_expert, quick
from atommem.demo.run import Demo
from atommem.dialects import get_dialect
from atommem.envs.scoring.records import EvalResult, compare
from atommem.envs.synthetic.expert import ExpertPolicy
from atommem.eval.runner import EPISODES, parse_records
from atommem.rollout import EpisodeRunner
from atommem.train.console import METRICS_FILE, read_metrics
from atommem.train.objective.rows import QUARTERS, EpisodeSize, gradient_shares, group_advantages

NORMALIZATIONS = ("token", "step", "trajectory")
WORLDS: dict[str, Recipe] = {
    "web": WEB,
    "questions": replace(
        FULL,
        size=replace(FULL.size, max_positions=512),
        world=replace(FULL.world, questions=(1, 5), distractors=1),
    ),
}


def expert_shares(recipe: Recipe, folder: Path, tasks: int) -> dict[str, Any]:
    """Return `gradient_shares` of the faulty expert's groups by normalization."""
    demo, group = Demo(recipe, folder, 0, Console(quiet=True)), 16
    memory = demo.settings.run.memory
    dialect = get_dialect(memory.dialect, memory.templates)
    expert = make_expert(recipe.world, dialect, recipe.cold_start.faults)
    policy = ExpertPolicy(expert, demo.tokenizer, demo.tokenizer.eos_token_id)
    runner = EpisodeRunner(demo._agent(policy), max_in_flight=256)
    jobs = [(task, sample) for task in demo.tasks(9, tasks) for sample in range(group)]
    episodes = asyncio.run(runner.run_all(jobs))
    rewards, sizes = [e.reward for e in episodes], [EpisodeSize.of(e) for e in episodes]
    advantages = group_advantages(rewards, group)
    shares = {n: quarters([gradient_shares(sizes, advantages, n)]) for n in NORMALIZATIONS}
    return {
        "steps": np.percentile([s.steps for s in sizes], [0, 25, 50, 75, 100]).tolist(),
        **shares,
    }


def quarters(updates: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the mean of each quarter over the updates that have one."""
    return {
        key: [
            round(float(np.mean([u[f"{key}_{q}"] for u in updates if f"{key}_{q}" in u] or [0])), 3)
            for q in QUARTERS
        ]
        for key in ("gradient_share/steps", "above_mean/steps")
    }


def train(recipe: Recipe, folder: Path, seed: int, start: Path | None = None) -> EvalResult:
    """Make a cold start in `folder`, or train the one in `start`, and evaluate it."""
    name = "before" if start is None else "after"
    found = folder / "eval" / name / EPISODES
    if not found.is_file():
        demo = Demo(recipe, folder, seed, Console(highlight=False))
        if start is None:
            demo.learn_to_copy()
            demo.cold_start()
        else:
            demo.model = AutoModelForCausalLM.from_pretrained(start / "cold_start")
            demo.grpo()
        return demo.evaluate(name)
    return EvalResult(tuple(parse_records(found.read_bytes(), found).values()))


def main() -> int:
    sizes = {"tasks": (64, 4), "seeds": 1, "output_dir": Path("runs/bench_normalization")}
    options = read_options(__doc__, worlds=[*WORLDS], shares=False, **sizes)
    runs: list[dict[str, Any]] = []
    shares_of: dict[str, Any] = {}
    for world in options.worlds:
        found = expert_shares(WORLDS[world], options.output_dir / "expert", options.tasks)
        shares_of[world] = found
        for name, figures in found.items():
            print(f"{world:<10} expert {name:<11}{figures}", flush=True)
    if options.shares:
        return last_line({"bench": "normalization", "expert": shares_of, "holds": True})
    for world, seed in ((w, s) for w in options.worlds for s in range(options.seeds)):
        recipe = quick(WORLDS[world]) if options.quick else WORLDS[world]
        folder = options.output_dir / f"{world}{'-quick' if options.quick else ''}-{seed}"
        before = train(recipe, folder, seed)
        results = {}
        for name in NORMALIZATIONS:
            changed = replace(recipe, settings={**recipe.settings, "normalization": (name,)})
            out = folder.with_name(f"{folder.name}-{name}")
            results[name] = train(changed, out, seed, folder)
            shares = quarters(read_metrics(out / "grpo" / METRICS_FILE))
            paired = compare(results["token"].records, results[name].records)
            figures = {"em": results[name].em, "em_before": before.em, "p": paired.p_value}
            runs.append({"world": world, "seed": seed, "normalization": name, **figures, **shares})
            print(runs[-1], flush=True)
    holds = options.quick or all(run["em"] > run["em_before"] for run in runs)
    return last_line({"bench": "normalization", "expert": shares_of, "runs": runs, "holds": holds})


if __name__ == "__main__":
    raise SystemExit(main())
