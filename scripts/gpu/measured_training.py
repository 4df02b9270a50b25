"""Run `atommem train grpo` on random weights and write the memory and seconds of each phase.

    python scripts/gpu/measured_training.py OUT.json [--cpu_fsdp2] -- FLAGS OF atommem train grpo

A random policy earns nothing, and equal rewards train nothing, so rewards are drawn at random; what
it samples becomes a scratchpad, so that the prompts of a group differ. Memory is
`torch.cuda.max_memory_allocated`, 0 on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    **{"model_type": "qwen3", "vocab_size": 4000, "hidden_size": 512, "intermediate_size": 1536},
    **{"num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4},
    **{"head_dim": 64, "max_position_embeddings": 2048, "tie_word_embeddings": False},
}


def shipped(name: str) -> dict[str, Any]:
    path = ROOT / "train" / "architectures" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def make_model(
    architecture: dict[str, Any], dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    config = AutoConfig.for_model(**{**architecture, **ids})
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def make_inputs(
    folder: Path, model: Any, tasks: int, documents: int, words: int
) -> tuple[str, ...]:
    """Save model, tokenizer (a word is a token) and tasks; returns the flags that name them."""
    from atommem.demo.tiny_policy import word_tokenizer
    from atommem.envs.task import Document, Question, Task
    from atommem.envs.task_files import save_tasks

    size = model.config.vocab_size
    model.save_pretrained(folder / "model")
    word_tokenizer(f"w{index}" for index in range(3, size)).save_pretrained(folder / "model")
    rng = random.Random(0)

    def text(count: int) -> str:
        return " ".join(f"w{rng.randrange(3, size)}" for _ in range(count))

    made = []
    for index in range(tasks):
        texts = tuple(Document("", text(words)) for _ in range(documents))
        made.append(Task(f"t{index}", (Question(text(8), ("w3",)),), texts))
    save_tasks(made, folder / "tasks.jsonl")
    return "--model_name_or_path", str(folder / "model"), "--data", str(folder / "tasks.jsonl")


class Phases:
    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self._name, self._began = "loading", time.perf_counter()

    def enter(self, name: str) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated()
            self.bytes[self._name] = max(self.bytes.get(self._name, 0), peak)
            torch.cuda.reset_peak_memory_stats()
        now = time.perf_counter()
        self.seconds[self._name] = self.seconds.get(self._name, 0.0) + now - self._began
        self._name, self._began = name, now


def run(
    flags: Sequence[str], backend: Any = None, probe: Callable[[Any, Any], None] | None = None
) -> dict[str, Any]:
    """Train in this process; returns bytes and seconds by phase, and what was logged.

    `backend` is the class that samples (unset: `LocalBackend`); `probe` is called with it and the
    trainer when new weights are there.
    """
    from atommem.environment import Score
    from atommem.envs.longdoc import Environments
    from atommem.policy import local
    from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
    from atommem.train.rollout.backends import LocalBackend
    from atommem.train.train_cli import main as train_main

    rng = random.Random(int(os.environ.get("RANK", "0")))

    async def random_score(self: Environments, task: Any, answers: Any) -> Score:
        return Score(rng.random(), (), {})

    def as_scratchpad(*arguments: Any) -> Any:
        completion = make_completion(*arguments)
        return replace(completion, text=f"<update_scratchpad>{completion.text}</update_scratchpad>")

    Environments.score = random_score  # type: ignore[assignment,method-assign]
    make_completion: Any = local.make_completion
    local.make_completion = as_scratchpad  # type: ignore[assignment]
    phases, history = Phases(), list[dict[str, Any]]()
    backend = backend or LocalBackend
    rollout, publish, close = backend.rollout, backend.publish, MemoryGRPOTrainer.close

    @contextmanager
    def measured_rollout(self: Any, trainer: Any) -> Iterator[None]:
        phases.enter("rollout")
        with rollout(self, trainer):
            if probe is not None:
                probe(self, trainer)
            yield
        phases.enter("training")

    def measured_publish(self: Any, trainer: Any) -> None:
        phases.enter("sync")
        publish(self, trainer)
        phases.enter("training")

    def measured_close(self: MemoryGRPOTrainer) -> None:
        phases.enter("saving")
        history.extend(entry for entry in self.state.log_history if "reward" in entry)
        close(self)

    backend.rollout, backend.publish = measured_rollout, measured_publish
    MemoryGRPOTrainer.close = measured_close  # type: ignore[method-assign]
    status = train_main(["grpo", *flags])
    phases.enter("end")
    return {"status": status, "bytes": phases.bytes, "seconds": phases.seconds, "updates": history}


def main() -> int:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cpu_fsdp2", action="store_true", help="shard CPU processes as GPUs")
    own = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments = parser.parse_args(sys.argv[1:own])
    if arguments.cpu_fsdp2:
        sys.path.insert(0, str(ROOT))
        from tests.train.shipped.cpu_ranks import launch_as_fsdp2

        launch_as_fsdp2()
    found = run(sys.argv[own + 1 :])
    if os.environ.get("RANK", "0") == "0":
        arguments.out.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
