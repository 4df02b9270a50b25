"""GRPO with LoRA against a live vLLM server, which gets the new adapter after every update.

    python scripts/bench_lora_sync.py [--out DIR] [--seeds 0 1 2]

One run a seed, each with a policy, tasks and a server of its own; all are reported, and all have to hold. Two claims.
The server samples from the very weights that are trained: the log-probabilities that it returns agree with the
trainer's to 1e-3 on average, in float32, at every update. And what is learned that way is learned: the demo's held-out
EM rises as it does with local rollouts (.50 at most before, .90 at least after).

``--local`` trains the same from local rollouts: where a run falls short, it tells the engine's part from the settings'.
The training is ``atommem train grpo``; both evaluations are sampled by the server too.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agents import make_agent
from quick import add_quick, command_line, flags, last_line
from tiny_policy import RECIPE, cold_start
from vllm_process import VllmServer

from atommem.demo.recipe import GRPO_CONFIG, quick
from atommem.embedding import make_embedder
from atommem.envs.scoring.records import EvalResult
from atommem.envs.synthetic.world import generate
from atommem.envs.task_files import save_tasks
from atommem.episode_runner import EpisodeRunner
from atommem.eval.runner import evaluate
from atommem.policy.contract import Sampling
from atommem.policy.server_pool import Adapter, ServerPool
from atommem.train.logs.console import METRICS_FILE, read_metrics
from atommem.train.loops.models import load_tokenizer
from atommem.train.settings import parse
from atommem.train.stages import run_grpo

RANK = 32
DIFFERENCE = "sampling/sampling_logp_difference/mean"
LARGEST_DIFFERENCE = 1e-3
EM_BEFORE, EM_AFTER = 0.5, 0.9
HELDOUT, TRAINING = 1, 3
"""Streams of tasks, as the demo numbers them."""


def start_server(model: Path, log: Path) -> VllmServer:
    """A server that takes adapters at run time; small blocks, because prompts have about 100 tokens."""
    flags = ["--max-model-len", "256", "--max-num-batched-tokens", "8192", "--max-num-seqs", "512"]
    flags += [
        "--block-size",
        "32",
        "--enable-lora",
        "--max-lora-rank",
        str(RANK),
        "--disable-uvicorn-access-log",
    ]
    return VllmServer(
        model, log, *flags, env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "OMP_NUM_THREADS": "1"}
    )


def arguments_of(
    model: Path,
    data: Path,
    out: Path,
    url: str | None,
    updates: int,
    learning_rate: float,
    seed: int,
) -> list[str]:
    """The command line of the training, after ``atommem train grpo``; without a `url` it samples by itself."""
    values: dict[str, Any] = {
        "config": GRPO_CONFIG,
        "model_name_or_path": model,
        "data": data,
        "output_dir": out,
        "max_steps": updates,
        "learning_rate": learning_rate,
        "seed": seed,
        "use_cpu": "true",
        **({"use_vllm": "true", "vllm_mode": "server", "vllm_server_base_url": url} if url else {}),
        "use_peft": "true",
        "lora_r": RANK,
        "lora_alpha": RANK,
        "lora_dropout": 0.0,
        "lora_target_modules": "all-linear",
    }
    return flags(values)


def sample_heldout(
    settings: Any, url: str, tasks: list[Any], adapter: Adapter | None
) -> EvalResult:
    """Held-out EM, sampled by the server with training's sampling: of the base model, or of an adapter."""
    args, memory, embedder, environment, model = settings
    tokenizer = load_tokenizer(model)

    async def run() -> EvalResult:
        pool = ServerPool([url], "policy", tokenizer=tokenizer, max_in_flight=1024)
        if adapter is not None:
            await pool.use_adapter(adapter)
        of = {**asdict(memory), **asdict(environment), "max_tokens": args.max_completion_length}
        agent = make_agent(
            pool, make_embedder(embedder), tokenizer, stored=of, temperature=args.temperature
        )
        try:
            return await evaluate(tasks, EpisodeRunner(agent), progress=False)
        finally:
            await pool.close()

    return asyncio.run(run())


async def first_logprob(
    url: str, tokenizer: Any, prompt: list[int], adapter: Adapter | None
) -> float:
    """Log-probability of the most likely first token: tells apart what the server samples from."""
    pool = ServerPool([url], "policy", tokenizer=tokenizer)
    if adapter is not None:
        await pool.use_adapter(adapter)
    completion = await pool.complete(prompt, Sampling(temperature=0.0, max_tokens=1))
    await pool.close()
    return completion.logprobs[0]


def run(out: Path, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Cold start (unless it is there), evaluation, training against a server, evaluation; the figures of one seed."""
    model = cold_start(out / f"policy-{seed}", seed, quick(RECIPE) if options.quick else RECIPE)
    heldout = list(generate(RECIPE.world, options.heldout, 10 * seed + HELDOUT))
    data, trained = out / f"train-{seed}.parquet", out / f"grpo-{seed}-{int(time.time())}"
    with start_server(model, out / f"server-{seed}.log") as server:
        url = None if options.local else server.url
        settings = parse(
            "grpo",
            arguments_of(model, data, trained, url, options.updates, options.learning_rate, seed),
        )
        args = settings[0]
        count = args.max_steps * args.per_device_train_batch_size // args.num_generations
        save_tasks(list(generate(RECIPE.world, count, 10 * seed + TRAINING)), data)
        before = sample_heldout(settings, server.url, heldout, None)
        print(f"held-out EM before, by the server: {before.em:.3f}", flush=True)
        training = time.perf_counter()
        run_grpo(settings)
        training = time.perf_counter() - training
        final = Adapter("final", str(trained))
        after = sample_heldout(settings, server.url, heldout, final)
        tokenizer = load_tokenizer(settings[-1])
        prompt = tokenizer.encode(heldout[0].documents[0].text)
        logprobs = [
            asyncio.run(first_logprob(server.url, tokenizer, prompt, which))
            for which in (None, final)
        ]
        counters = server.metrics()
    updates = [entry for entry in read_metrics(trained / METRICS_FILE) if "reward" in entry]
    differences = [entry[DIFFERENCE] for entry in updates if DIFFERENCE in entry]
    print(
        f"{'update':>6}  {'reward':>6}  {'log-prob difference':>19}  {'sync s':>6}  {'rollout s':>9}"
    )
    for number, entry in enumerate(updates, 1):
        print(
            f"{number:>6}  {entry['reward']:>6.3f}  {entry.get(DIFFERENCE, float('nan')):>19.1e}  "
            f"{entry.get('seconds/sync', 0.0):>6.2f}  {entry['seconds/rollout']:>9.1f}"
        )
    result = {
        "seed": seed,
        "updates": len(updates),
        "logp_difference_mean_largest": max(differences, default=0.0),
        "adapter_changes_logprob_by": abs(logprobs[0] - logprobs[1]),
        "em_before": before.em,
        "em_after": after.em,
        "heldout": len(heldout),
        "failed": before.failed + after.failed + sum(int(entry["failed"]) for entry in updates),
        "requests": int(counters["vllm:request_success_total"]),
        "seconds_training": round(training, 1),
    }
    result["holds"] = (
        len(updates) == options.updates
        and result["logp_difference_mean_largest"] <= LARGEST_DIFFERENCE
        # A server that had kept the first adapter would show it here, and in every difference above.
        and result["adapter_changes_logprob_by"] > 10 * LARGEST_DIFFERENCE
        and before.em <= EM_BEFORE
        and after.em >= EM_AFTER
    )
    print(f"seed {seed}: held-out EM {before.em:.3f} -> {after.em:.3f}", flush=True)
    return result


def main() -> int:
    """One run a seed; print the tables and the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/bench_lora_sync"))
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--learning_rate", type=float, default=1.5e-3)
    parser.add_argument("--heldout", type=int, default=RECIPE.heldout)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument(
        "--local", action="store_true", help="the same training with local rollouts, to compare"
    )
    add_quick(parser, updates=1, heldout=10, seeds=[0], out=Path("runs/bench_lora_sync_quick"))
    options = parser.parse_args()
    began = time.perf_counter()
    runs = [run(options.out.absolute(), seed, options) for seed in options.seeds]
    holds = all(one["holds"] for one in runs)
    return last_line(
        {"runs": runs, "seconds": round(time.perf_counter() - began, 1), "holds": holds}
    )


if __name__ == "__main__":
    raise SystemExit(main())
