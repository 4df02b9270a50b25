"""Does GRPO learn with rollouts from a vLLM server that gets the new adapter every update?

    python scripts/bench_lora_sync.py [--seeds 0 1 2] [--updates 40]

The demo's policy, in a size that vLLM serves on CPU, is cold-started (four minutes), served with
runtime LoRA and trained by `atommem train grpo` with `vllm_mode: server`. Held-out exact match is
sampled by the server before and after. In every update the log-probabilities of what the server
sampled must agree with the trainer's: a server that kept an older adapter would show there.

The bar: mean differences of log-probabilities at most 1e-3, exact match at most .5 before and at
least .9 after.
"""

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

from common import cold_start, flags, last_line, read_options, vllm_server

from atommem.demo.recipe import GRPO_CONFIG, PolicySize, Recipe, quick
from atommem.embedding import make_embedder
from atommem.envs.synthetic.world import generate
from atommem.envs.task_files import save_tasks
from atommem.eval.runner import evaluate
from atommem.policy.server_pool import Adapter, ServerPool
from atommem.train.console import METRICS_FILE, read_metrics
from atommem.train.loops.models import load_tokenizer
from atommem.train.rollout.rollouts import Rollouts
from atommem.train.settings import parse
from atommem.train.stages import GRPO

RECIPE = Recipe(size=PolicySize(heads=2, head_width=32))
RANK = 32
DIFFERENCE = "sampling/sampling_logp_difference/mean"
LARGEST_DIFFERENCE, MOST_BEFORE, LEAST_AFTER = 1e-3, 0.5, 0.9


def start_server(model: Path, log: Path) -> Any:
    """A server that takes adapters at run time; small blocks, because prompts have 100 tokens."""
    words = f"""--max-model-len 256 --max-num-batched-tokens 8192 --max-num-seqs 512 --block-size 32
        --enable-lora --max-lora-rank {RANK} --disable-uvicorn-access-log"""
    env = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "OMP_NUM_THREADS": "1"}
    return vllm_server(model, log, *words.split(), env=env)


def score(settings: Any, url: str, tasks: list[Any], adapter: Adapter | None) -> Any:
    run, tokenizer = settings.run, load_tokenizer(settings.model)

    async def sample() -> Any:
        pool = ServerPool([url], "policy", tokenizer=tokenizer, max_in_flight=1024)
        if adapter is not None:
            await pool.use_adapter(adapter)
        rollouts = Rollouts(settings.args, run, tokenizer, make_embedder(run.embedder))
        try:
            return await evaluate(tasks, rollouts.runner(pool), progress=False)
        finally:
            await pool.close()

    return asyncio.run(sample())


def run(out: Path, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    recipe = quick(RECIPE) if options.quick else RECIPE
    model = cold_start(recipe, out / f"policy-{seed}", seed)
    heldout = list(generate(RECIPE.world, options.heldout, 10 * seed + 1))
    data, trained = out / f"train-{seed}.parquet", out / f"grpo-{seed}-{int(time.time())}"
    with start_server(model, out / f"server-{seed}.log") as server:
        given: dict[str, Any] = {"config": GRPO_CONFIG, "model_name_or_path": model, "data": data}
        given |= {"output_dir": trained, "max_steps": options.updates, "seed": seed}
        given |= {"learning_rate": options.learning_rate, "use_cpu": "true", "use_vllm": "true"}
        given |= {"vllm_mode": "server", "vllm_server_base_url": server.url, "use_peft": "true"}
        given |= {"lora_r": RANK, "lora_alpha": RANK}
        given |= {"lora_target_modules": "all-linear"}
        settings = parse("grpo", flags(given))
        args = settings.args
        count = args.max_steps * args.per_device_train_batch_size // args.num_generations
        save_tasks(list(generate(RECIPE.world, count, 10 * seed + 3)), data)
        before = score(settings, server.url, heldout, None)
        GRPO.run(settings)
        after = score(settings, server.url, heldout, Adapter("final", str(trained)))
    updates = [entry for entry in read_metrics(trained / METRICS_FILE) if "reward" in entry]
    differences = [entry[DIFFERENCE] for entry in updates if DIFFERENCE in entry]
    found = {"em_before": before.em, "em_after": after.em, "updates": len(updates)}
    found["largest_difference"] = max(differences, default=0.0 if options.quick else float("inf"))
    found["failed"] = before.failed + after.failed + sum(int(entry["failed"]) for entry in updates)
    agrees = found["largest_difference"] <= LARGEST_DIFFERENCE
    learned = before.em <= MOST_BEFORE and after.em >= LEAST_AFTER
    found["holds"] = agrees and (options.quick or learned)
    print(f"seed {seed}: {found}", flush=True)
    return found


def main() -> int:
    options = read_options(
        __doc__,
        **{"updates": (40, 1), "heldout": (RECIPE.heldout, 10), "seeds": ([0, 1, 2], [0])},
        learning_rate=1.5e-3,
        output_dir=(Path("runs/bench_lora_sync"), Path("runs/bench_lora_sync_quick")),
    )
    runs = {seed: run(options.output_dir.absolute(), seed, options) for seed in options.seeds}
    holds = all(found["holds"] for found in runs.values())
    return last_line({"bench": "lora_sync", "runs": runs, "holds": holds})


if __name__ == "__main__":
    raise SystemExit(main())
