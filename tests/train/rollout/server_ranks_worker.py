"""Run by test_server_ranks.py under torchrun: two ranks train, each with its own view of fake servers.

Usage: server_ranks_worker.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig

from atommem.policy.server_pool import ServerPool
from atommem.train.resume.faults import RolloutFailedError
from atommem.train.rollout.adapters import AdapterPublisher
from atommem.train.rollout.full_weights import FullWeights
from atommem.train.rollout.server_backend import AdapterSync, ServerBackend
from tests.fake_vllm import Cluster
from tests.fakes import WordTokenizer
from tests.train.harness import make_config, make_trainer
from tests.train.toys import WrittenRunner, make_model, mixed_episode

LORA = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")


def train(folder: Path, down: list[str]) -> dict[str, Any]:
    """Three updates with the servers a and b, of which this rank cannot reach those in `down`."""
    cluster = Cluster("a", "b")
    for name in down:
        cluster[name].up = False
    pool = ServerPool(cluster.urls, tokenizer=WordTokenizer(), patience=0.2, transport=cluster.transport)
    runner = WrittenRunner(mixed_episode)
    runner.agent.policy = pool  # type: ignore[assignment]
    publisher = AdapterPublisher(folder / "adapters")
    backend = ServerBackend(runner, pool, AdapterSync(publisher))  # type: ignore[arg-type]
    config = make_config(folder, max_steps=3, per_device_train_batch_size=4, use_vllm=True, vllm_mode="server")
    trainer, _, _ = make_trainer(make_model(), config, mixed_episode, tasks=6, backend=backend, peft_config=LORA)
    error = ""
    try:
        trainer.train()
    except RolloutFailedError as failure:
        error = str(failure)
    loads = {name: server.loads for name, server in cluster.servers.items()}
    readable = all(
        Path(path).is_dir() for server in cluster.servers.values() for path in server.models.values() if path
    )
    logged = [entry for entry in trainer.state.log_history if "seconds/sync" in entry]
    trainer.close()
    return {"error": error, "loads": loads, "readable": readable, "logged": len(logged)}


class Transfer:
    """Takes weights for several servers at once, as TRL's client of one does."""

    def __init__(self, urls: Sequence[str], description: dict[str, Any]) -> None:
        self.urls, self.description = list(urls), description
        self.given = 0

    def send_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        self.given += sum(1 for _ in weights)

    def pause(self) -> None:
        """Nothing samples."""

    resume = destroy = pause


def train_whole(folder: Path) -> dict[str, Any]:
    """Two updates of all weights, with the servers a and b."""
    cluster = Cluster("a", "b")
    pool = ServerPool(cluster.urls, tokenizer=WordTokenizer(), patience=0.2, transport=cluster.transport)
    runner = WrittenRunner(mixed_episode)
    runner.agent.policy = pool  # type: ignore[assignment]
    transfers: list[Transfer] = []

    def connect(urls: Sequence[str], describe: Callable[[str], dict[str, Any]], timeout: float) -> Transfer:
        transfers.append(Transfer(urls, describe("bfloat16")))
        return transfers[-1]

    model = make_model()
    config = make_config(folder, max_steps=2, per_device_train_batch_size=4, use_vllm=True, vllm_mode="server")
    backend = ServerBackend(runner, pool, FullWeights(1.0, connect))  # type: ignore[arg-type]
    trainer, _, _ = make_trainer(model, config, mixed_episode, tasks=6, backend=backend)
    gathered: list[int] = []
    gather = trainer._dist.gather_params
    trainer._dist.gather_params = lambda parameters: gathered.append(len(parameters)) or gather(parameters)
    trainer.train()
    serving = [server.url for server in pool.serving]
    trainer.close()
    return {
        "parameters": sum(1 for _ in model.parameters()),
        "gathered": sum(gathered),
        "serving": serving,
        "transfers": [[each.urls, each.given, set(each.description["dtype_names"]).pop()] for each in transfers],
    }


def train_replacing(folder: Path, processes: int) -> dict[str, Any]:
    """Two updates of four groups, of which some are replaced; the tasks that this rank ran."""
    trainer, _, runner = make_trainer(
        make_model(),
        make_config(folder, max_steps=2, per_device_train_batch_size=16 // processes, dynamic_sampling=2),
        mixed_episode,
        tasks=24,
    )
    trainer.train()
    logged = [entry["dynamic_sampling/replaced_groups"] for entry in trainer.state.log_history if "reward" in entry]
    return {"jobs": runner.jobs, "replaced": logged}


def main(folder: Path) -> None:
    """All cases; what this rank saw goes to FOLDER/RANK.json."""
    second = os.environ["RANK"] == "1"
    seen = {
        "one lost": train(folder / "one", ["a"] if second else []),
        "all lost": train(folder / "all", ["a", "b"] if second else []),
        "whole": train_whole(folder / "whole"),
        "replacing": train_replacing(folder / "replacing", processes=2),
    }
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
