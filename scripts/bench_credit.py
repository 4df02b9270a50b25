"""Does leave-one-out credit learn from fewer episodes than uniform credit? An experiment, not a bar.

    python scripts/bench_credit.py [--seeds 0 1 2] [--updates 60] [--cold_start FOLDER-WITH-{seed}]

GRPO of the demo (`demo/grpo.yaml`) on the synthetic world from the same cold-started policy, with the same tasks, once
with ``credit: uniform`` and once with ``credit: leave_one_out`` (`train/credit.py`). Reported for every seed: episodes
until the mean training reward of five updates in a row reaches .80 and .90, and EM on 300 held-out tasks at the end.
Cold starts are made (four minutes each) unless --cold_start names folders, with ``{seed}`` in the name. The last line
is one JSON object; "holds" says that all runs were made, "helps" what was found.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from atommem.demo.recipe import FULL
from atommem.demo.run import Demo
from atommem.envs.longdoc.environment import LongDocEnvironments
from atommem.envs.synthetic.world import generate
from atommem.episode_runner import EpisodeRunner
from atommem.policy.contract import Sampling
from atommem.policy.local import LocalPolicy
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from atommem.train.rollout.local_backend import local_backend
from atommem.train.watch.callbacks import GRPO_COLUMNS, METRICS_FILE, read_metrics, use_console

LEVELS = (0.8, 0.9)
WINDOW = 5
CREDITS = ("uniform", "leave_one_out")


def cold_start(pattern: str | None, seed: int, scratch: Path) -> Path:
    """The folder of the policy that both runs of a seed start from."""
    if pattern:
        return Path(pattern.format(seed=seed))
    demo = Demo(FULL, scratch / f"cold{seed}", seed, Console(width=120))
    demo.learn_to_copy()
    demo.cold_start()
    return scratch / f"cold{seed}" / "cold_start"


def train(folder: Path, credit: str, seed: int, updates: int, scratch: Path) -> dict[str, Any]:
    """One run; returns its rewards, held-out EM and seconds."""
    out = scratch / f"{credit}-{seed}"
    demo = Demo(replace(FULL, updates=updates), out, seed, Console(quiet=True))
    demo.model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    demo.tokenizer = AutoTokenizer.from_pretrained(folder)
    settings = demo.settings
    settings.train.credit = credit
    groups = settings.train.per_device_train_batch_size // (settings.train.num_generations or 1)
    make_backend = local_backend(settings.train, demo.tokenizer, demo.embedder, settings.memory, settings.environment)
    started = time.perf_counter()
    trainer = MemoryGRPOTrainer(
        demo.model,
        settings.train,
        list(generate(FULL.world, groups * updates, 10 * seed + 3)),
        demo.tokenizer,
        make_backend,
    )
    use_console(trainer, [column for column in GRPO_COLUMNS if column[0] in ("reward", "create", "update", "store")])
    trainer.train()
    seconds = time.perf_counter() - started
    runner = EpisodeRunner(
        policy=LocalPolicy(demo.model, demo.tokenizer),
        embedder=demo.embedder,
        tokenizer=demo.tokenizer,
        environment_factory=LongDocEnvironments(demo.tokenizer, settings.environment),
        memory=settings.memory,
        sampling=Sampling(1.0, max_tokens=48, seed=seed),
    )
    episodes = asyncio.run(runner.run_all([(task, 0) for task in demo.heldout]))
    rewards = [entry["reward"] for entry in read_metrics(out / "grpo" / METRICS_FILE) if "reward" in entry]
    em = sum(episode.metrics["em"] for episode in episodes) / len(episodes)
    return {"rewards": rewards, "em": em, "seconds": seconds}


def episodes_until(rewards: list[float], level: float, per_update: int) -> int | None:
    """Episodes until the mean of `WINDOW` updates reaches `level`; None where it never does."""
    for end in range(WINDOW, len(rewards) + 1):
        if sum(rewards[end - WINDOW : end]) / WINDOW >= level:
            return end * per_update
    return None


def main(argv: list[str] | None = None) -> int:
    """Run the experiment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--cold_start", help="folder of each seed's cold-started policy, with {seed} in its name")
    arguments = parser.parse_args(argv)
    disable_progress_bar()
    found: dict[str, list[dict[str, Any]]] = {credit: [] for credit in CREDITS}
    with tempfile.TemporaryDirectory() as name:
        for seed in arguments.seeds:
            folder = cold_start(arguments.cold_start, seed, Path(name))
            for credit in CREDITS:
                run = train(folder, credit, seed, arguments.updates, Path(name))
                reached = {str(level): episodes_until(run["rewards"], level, 256) for level in LEVELS}
                mean = sum(run["rewards"]) / len(run["rewards"])
                row = {"seed": seed, "em": round(run["em"], 3), "mean_reward": round(mean, 3), **reached}
                found[credit].append({**row, "seconds": round(run["seconds"])})
                print(f"{credit:14} {json.dumps(found[credit][-1])}", flush=True)
    pairs = list(zip(found["uniform"], found["leave_one_out"], strict=True))
    sooner = {
        str(level): sum((loo[str(level)] or 10**9) < (uni[str(level)] or 10**9) for uni, loo in pairs)
        for level in LEVELS
    }
    helps = all(count == len(pairs) for count in sooner.values())
    print(json.dumps({"bench": "credit", **found, "seeds_sooner": sooner, "helps": helps, "holds": True}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
