"""Is an update through a Tinker server our update, and does a policy learn through it?

    python scripts/bench_tinker.py [--policy FOLDER] [--updates 12]

SkyRL's server (jax backend, on CPU, in the environment of scripts/skyrl_python) holds the demo's
policy, which is cold-started (four minutes) unless `--policy` is one. First one update: after one
step, so that both halves of the adapter have gradients, the server's log-probabilities and its
gradient are compared with those of our trainer on the same adapter and the same rows. A step of
Adam without moments and with a large epsilon shows the gradient. Then `atommem train tinker`, and
exact match on held-out tasks before and after, sampled by the server, and after also by the
downloaded adapter in this process.

The bar: log-probabilities within 1e-5, cosine of the gradients at least 1 - 1e-4 and norms within
1e-3; exact match at most .5 before and at least .85 after.
"""

import asyncio
import json
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import cold_start, evaluate_variants, flags, last_line, python_of, read_options, started
from safetensors.torch import load_file

from atommem.demo.recipe import FULL, GRPO_CONFIG, quick
from atommem.envs.synthetic.world import generate
from atommem.envs.task_files import save_tasks
from atommem.integrations.tinker import connect, loss_config, make_data, trained_logprobs
from atommem.integrations.tinker_train import STAGE, TinkerTrainer
from atommem.train.console import METRICS_FILE, read_metrics
from atommem.train.loops.update_step import DIFFERENCE, Batch, batch_of
from atommem.train.objective.rows import merge_equal_rows
from atommem.train.settings import parse
from atommem.train.stages import make_grpo_trainer

RANK = 32
LEAST_COSINE, MOST_APART, MOST_NORMS_APART = 1 - 1e-4, 1e-5, 1e-3
MOST_BEFORE, LEAST_AFTER = 0.5, 0.85


def start_server(model: Path, out: Path) -> Any:
    """SkyRL's Tinker server, at `PORT`; few shapes, because each is compiled.

    Its batches have a fixed size, and what fills them up is sampled to the last token.
    """
    folder = python_of("skyrl_python").parent
    for file in out.glob("tinker.db*"):
        file.unlink()
    sizes = {"max_lora_adapters": 3, "max_lora_rank": RANK}
    sizes |= {"train_micro_batch_size": 64, "sample_max_num_sequences": 64}
    words = f"""run -m skyrl.tinker.api --host 127.0.0.1 --port {PORT} --backend jax
        --base-model {model} --database-url sqlite:///{out}/tinker.db
        --checkpoints-base {out}/checkpoints"""
    command = [str(folder / "uv"), *words.split(), "--backend-config", json.dumps(sizes)]
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "JAX_PLATFORMS": "cpu"}
    env["JAX_COMPILATION_CACHE_DIR"] = str(out / "compiled")
    return started(command, f"{URL}/api/v1/healthz", out / "server.log", env=env)


def compare_update(given: dict[str, Any], out: Path) -> dict[str, float]:
    """Compare log-probabilities and gradient of one update with our trainer's."""
    import tinker

    settings = parse("tinker", flags({**given, "output_dir": out / "update"}))
    trainer = TinkerTrainer(settings, connect(URL))
    for update in (0, 1):
        episodes, _ = trainer.collect(update)
        batch, _ = batch_of(episodes, trainer.args)
        rows, over = merge_equal_rows(batch.rows), batch.normalizer
        if update == 0:
            trainer.step(rows, over, learning_rate=1e-2)
    before = trainer.download("before", out / "before")
    trainer.close()

    own = {name: given[name] for name in ("config", "data", "num_generations", "max_steps")}
    own |= {"per_device_train_batch_size": given["per_device_train_batch_size"]}
    own |= {"model_name_or_path": before, "output_dir": out / "own", "use_cpu": "true"}
    ours = make_grpo_trainer(parse("grpo", flags(own)))
    logprobs = {row.ids.tobytes(): row for row in ours._update.with_old_logprobs(ours.model, rows)}
    expected = np.concatenate([logprobs[row.ids.tobytes()].old_logprobs for row in rows])
    ours._update.run(ours.model, Batch(rows, over))
    gradients = {
        name.replace(".default", ""): parameter.grad
        for name, parameter in ours.model.named_parameters()
        if parameter.grad is not None
    }
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    ours.close()

    data = make_data(rows, over, trainer.args.server_reduction)
    client, args = trainer.client, trainer.args
    reply = client.forward_backward(data, args.loss_fn, loss_config(args)).result()
    # Without moments the step is rate * gradient / (|gradient| + epsilon).
    epsilon = 1e6 * largest
    adam = {"beta1": 0.0, "beta2": 0.0, "eps": epsilon, "learning_rate": epsilon / largest}
    client.optim_step(tinker.AdamParams(**adam)).result()
    old, new = (
        load_file(folder / "adapter_model.safetensors")
        for folder in (before, trainer.download("after", out / "after"))
    )
    # The server has one A for q, k and v, and one for gate and up: its gradient is their sum.
    shared: dict[bytes, list[str]] = defaultdict(list)
    for name in sorted(gradients):
        shared[old[name].numpy().tobytes()].append(name)
    theirs = torch.cat([((old[n] - new[n]) * largest).flatten() for n, *_ in shared.values()])
    sums = [torch.stack([gradients[n] for n in names]).sum(0) for names in shared.values()]
    own_gradient = torch.cat([gradient.flatten() for gradient in sums])
    cosine = torch.cosine_similarity(theirs.double(), own_gradient.double(), dim=0, eps=0.0)
    return {
        **{"rows": len(rows), "parameters": len(own_gradient)},
        "logprobs_apart": float(np.abs(trained_logprobs(reply, rows) - expected).max()),
        "cosine": float(cosine),
        "norms_apart": abs(float(theirs.norm() / own_gradient.norm()) - 1),
    }


def learn(given: dict[str, Any], out: Path, heldout: list[Any]) -> dict[str, Any]:
    trained, began = out / f"trained-{int(time.time())}", time.perf_counter()
    STAGE.run(parse("tinker", flags({**given, "output_dir": trained})))
    entries = read_metrics(trained / METRICS_FILE)
    scores = [entry["eval_em"] for entry in entries if "eval_em" in entry]
    local = asyncio.run(evaluate_variants(trained, heldout, {"local": {}}))["local"].em
    updates = [entry for entry in entries if "reward" in entry]
    return {
        **{"em_before": scores[0], "em_after": scores[-1], "em_downloaded": local},
        **{"updates": len(updates), "seconds": round(time.perf_counter() - began)},
        "largest_difference": max(entry.get(DIFFERENCE, 0.0) for entry in updates),
        "failed": sum(int(entry["failed"]) for entry in updates),
    }


def main() -> int:
    options = read_options(
        __doc__,
        **{"updates": (12, 1), "episodes": (128, 16), "heldout": (200, 8)},
        **{"learning_rate": 3e-3, "seed": 0, "policy": Path},
        output_dir=(Path("runs/bench_tinker"), Path("runs/bench_tinker_quick")),
    )
    out = options.output_dir.absolute()
    out.mkdir(parents=True, exist_ok=True)
    recipe = quick(FULL) if options.quick else FULL
    model = (options.policy or cold_start(recipe, out, options.seed)).absolute()
    count = options.updates * options.episodes // 16
    train, heldout = (
        list(generate(FULL.world, size, 10 * options.seed + stream))
        for size, stream in ((max(count, 64), 3), (options.heldout, 1))
    )
    save_tasks(train, out / "train.parquet")
    save_tasks(heldout, out / "heldout.parquet")
    given: dict[str, Any] = {"config": GRPO_CONFIG, "model_name_or_path": model, "base_url": URL}
    given |= {"data": out / "train.parquet", "max_steps": options.updates, "seed": options.seed}
    given |= {"per_device_train_batch_size": options.episodes, "num_generations": 16}
    given |= {"lora_r": RANK, "server_reduction": "row_mean", "save_strategy": "no"}
    given |= {"learning_rate": options.learning_rate, "max_completion_length": 16}
    given |= {"max_inflight_tasks": 64}  # more wait for SkyRL's SQLite until it gives up
    evaluated = {"eval_data": out / "heldout.parquet", "eval_strategy": "steps"}
    evaluated |= {"eval_steps": options.updates, "eval_on_start": "true"}
    with start_server(model, out):
        small = {"per_device_train_batch_size": min(32, options.episodes)}
        update = compare_update({**given, **small}, out)
        print(f"one update: {update}", flush=True)
        learned = learn({**given, **evaluated}, out, heldout)
        print(f"learning: {learned}", flush=True)
    equal = update["logprobs_apart"] <= MOST_APART and update["cosine"] >= LEAST_COSINE
    equal = equal and update["norms_apart"] <= MOST_NORMS_APART
    better = learned["em_before"] <= MOST_BEFORE and learned["em_after"] >= LEAST_AFTER
    holds = equal and (options.quick or better)
    return last_line({"bench": "tinker", "update": update, "learning": learned, "holds": holds})


PORT = 8917
URL = f"http://127.0.0.1:{PORT}"

if __name__ == "__main__":
    raise SystemExit(main())
