"""Run by test_server_ranks.py under torchrun: two ranks train a LoRA adapter, each with its own view of fake servers.

Usage: server_ranks_worker.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from peft import LoraConfig

from atommem.policy.server_pool import ServerPool
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from atommem.train.resume.faults import RolloutFailedError
from atommem.train.rollout.adapters import AdapterPublisher
from atommem.train.rollout.server_backend import AdapterSync, ServerBackend
from tests.fake_vllm import Cluster
from tests.fakes import WordTokenizer
from tests.train.harness import make_config
from tests.train.toys import ToyTask, WrittenRunner, make_model, make_tokenizer, mixed_episode

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
    trainer = MemoryGRPOTrainer(
        model=make_model(),
        args=make_config(folder, max_steps=3, per_device_train_batch_size=4, use_vllm=True, vllm_mode="server"),
        tasks=[ToyTask(f"t{index}") for index in range(6)],
        processing_class=make_tokenizer(),
        make_backend=lambda _: backend,
        peft_config=LORA,
    )
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


def main(folder: Path) -> None:
    """Both cases; what this rank saw goes to FOLDER/RANK.json."""
    second = os.environ["RANK"] == "1"
    seen = {
        "one lost": train(folder / "one", ["a"] if second else []),
        "all lost": train(folder / "all", ["a", "b"] if second else []),
    }
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
