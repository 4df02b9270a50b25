"""Which memory actions do the demo's policies need?

    python scripts/bench_ablations.py [--policy runs/demo/grpo] [--limited_policy
    runs/demo_limited/grpo]

The rows of Table 2 of arXiv 2601.08323 in the synthetic world: each action is switched off in the
environment and in the prompt of a trained policy, on held-out tasks. Missing policies are trained
first (`atommem demo` and `atommem demo --limited`, 5 and 11 minutes on two idle cores). Settings:

- the demo's world with an unlimited store: every action but delete is needed;
- the same without corrections in the text: update is not needed either;
- a store of three entries in a world with more facts (`atommem demo --limited`): delete is needed
  too;
- the same policy and store where all facts that may matter fit: delete is not needed.

Each ablation is compared with the full policy by the two-sided sign-flip test, with Holm's
correction over all comparisons. The last line is JSON; the exit status is 0 if every needed action
costs EM at .01 and no other costs more than .02.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import evaluate_variants, last_line, read_options
from rich.console import Console

from atommem.demo.recipe import FULL, LIMITED, Recipe, quick
from atommem.demo.run import run_demo
from atommem.envs.scoring.records import compare
from atommem.envs.scoring.statistics import holm
from atommem.envs.synthetic.world import generate

ALPHA, MOST_LOST = 0.01, 0.02
STORE = ["create", "read", "update", "delete"]
ABLATIONS: dict[str, list[str]] = {
    "w/o update": ["update"],
    "w/o delete": ["delete"],
    "w/o create": ["create"],
    "w/o read": ["read"],
    "w/o scratchpad": ["scratchpad"],
    "w/o storage": STORE,
    "w/o both": [*STORE, "scratchpad"],
}


def find_policy(folder: Path | None, default: Path, recipe: Recipe) -> Path:
    """Return `folder`, or `default`, where the recipe is trained if nothing is there."""
    if folder is None and not default.is_dir():
        run_demo(recipe, default.parent, 0, Console(highlight=False))
    return folder or default


def main() -> int:
    options = read_options(
        __doc__,
        **{"policy": Path, "limited_policy": Path, "n": (300, 4)},
        **{"temperature": 1.0, "seed": 1_000_001},
    )
    full, limited = (quick(FULL), quick(LIMITED)) if options.quick else (FULL, LIMITED)
    end = "_quick" if options.quick else ""
    policy = find_policy(options.policy, Path(f"runs/demo{end}/grpo"), full)
    other = options.limited_policy or (policy if options.quick else None)
    other = find_policy(other, Path(f"runs/demo_limited{end}/grpo"), limited)
    size = limited.world.capacity
    still = replace(full.world, corrections=0.0)
    # A capacity, though all fits: the policy knows no prompt without the store's fill.
    fitting = replace(limited.world, distractors=2, capacity=None)
    most = [name for name in ABLATIONS if name != "w/o delete"]
    # Policy, world, capacity, the ablations that cost EM, and those that do not.
    settings: dict[str, tuple[Path, Any, int | None, list[str], list[str]]] = {
        "unlimited": (policy, full.world, None, most, ["w/o delete"]),
        "no corrections": (policy, still, None, [], ["w/o update", "w/o delete"]),
        "limited": (other, limited.world, size, list(ABLATIONS), []),
        "fitting": (other, fitting, size, [], ["w/o delete"]),
    }
    scores: dict[tuple[str, str], float] = {}
    compared = {}
    for name, (folder, world, capacity, needed, free) in settings.items():
        variants = {
            variant: {"capacity": capacity, "disabled_actions": ABLATIONS.get(variant, [])}
            for variant in ("full", *needed, *free)
        }
        tasks = list(generate(world, options.n, options.seed))
        given = {"temperature": options.temperature, "seed": options.seed}
        results = asyncio.run(evaluate_variants(folder, tasks, variants, **given))
        for variant, result in results.items():
            scores[name, variant] = result.em
            if variant != "full":
                compared[name, variant] = compare(results["full"].records, result.records)
    adjusted = holm([item.p_value for item in compared.values()])
    figures: dict[str, dict[str, Any]] = {name: {"full": scores[name, "full"]} for name in settings}
    wrong = []
    for ((name, variant), item), p_value in zip(compared.items(), adjusted, strict=True):
        gap = item.difference
        assert gap is not None, "every task has a score"
        is_needed = variant in settings[name][3]
        found = {"em": scores[name, variant], "difference": gap.difference, "p_holm": p_value}
        figures[name][variant] = found | {"low": gap.low, "high": gap.high, "needed": is_needed}
        costs = gap.difference < 0 and p_value < ALPHA
        if (is_needed and not costs) or (not is_needed and gap.difference < -MOST_LOST):
            wrong.append(f"{name}: {variant}")
        print(f"{name:<16}{variant:<16}{figures[name][variant]}")
    holds = options.quick or not wrong
    result = {"bench": "ablations", "n": options.n, **figures, "unexpected": wrong}
    return last_line({**result, "holds": holds})


if __name__ == "__main__":
    raise SystemExit(main())
