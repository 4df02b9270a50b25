"""What does prefix-tree training save?

    python scripts/bench_tree_speed.py [--rounds 2]

Forward and backward pass of one group: 16 rows whose prompts share 1,200 tokens and have 150 of their own, completions
of 60 tokens; a Qwen3 of width 512 with 6 layers (20M parameters), fp32. Side by side, alternating:

    padded   what TRL's trainer runs for these rows: `GRPOTrainer._get_per_token_logps_and_entropies` on a padded
             batch, in micro-batches of four rows
    packed   the same rows as one token trie (`atommem.train.packing.trie`, `atommem.train.packing.tree_attention`)

Peak memory is that of a process that runs only one of the two. The last line is one JSON object; the exit code is 0
if and only if its "holds" is true: at least 4.0 times as fast, at least 85% of what raw / distinct tokens allow, and
no more memory.
"""

from __future__ import annotations

import argparse
import inspect
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from atommem.train.loops.models import tune_lm_head_for_cpu
from atommem.train.objective.sequences import Row
from atommem.train.packing.tree_attention import register_tree_attention, use_tree_attention
from atommem.train.packing.trie import pack_rows

GROUP, SHARED, OWN, COMPLETION, VOCABULARY, ROWS = 16, 1200, 150, 60, 2048, 4
MIN_SPEED, MIN_SHARE = 4.0, 0.85


def make_model() -> Any:
    """About 20M parameters, random."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=512, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=4, head_dim=64, max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).train()
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model


def make_rows() -> list[Row]:
    """The group, as random tokens."""
    rng = random.Random(0)

    def tokens(count: int) -> list[int]:
        return rng.choices(range(VOCABULARY), k=count)

    shared = tokens(SHARED)
    return [Row(shared + tokens(OWN), tokens(COMPLETION), [], 0, 1.0, 1.0) for _ in range(GROUP)]


def padded_step(model: Any, rows: list[Row]) -> torch.Tensor:
    """TRL's own method, on a stand-in for its trainer."""
    trainer = SimpleNamespace(accelerator=SimpleNamespace(autocast=torch.enable_grad))
    # Without the decorator that reports its time to wandb.
    method = inspect.unwrap(GRPOTrainer._get_per_token_logps_and_entropies)
    found = []
    for start in range(0, len(rows), ROWS):
        ids = torch.tensor([row.ids.tolist() for row in rows[start : start + ROWS]])
        logps, _, _ = method(trainer, model, ids, torch.ones_like(ids), COMPLETION, compute_entropy=True)
        (-logps.sum()).backward()
        found.append(logps.detach())
    return torch.cat(found)


def packed_step(model: Any, rows: list[Row]) -> torch.Tensor:
    """Packing included."""
    with use_tree_attention(model):
        logps, _ = pack_rows(rows).score(model)
        (-logps.sum()).backward()
    return logps.detach().view(len(rows), COMPLETION)


STEPS: dict[str, Callable[[Any, list[Row]], torch.Tensor]] = {"padded": padded_step, "packed": packed_step}


def peak_memory(name: str) -> float:
    """MB that a process of its own needs for one step beyond the model and its gradients."""
    done = subprocess.run([sys.executable, __file__, "--memory", name], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def measure_memory(name: str) -> None:
    """Run in that process."""
    model = make_model()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    STEPS[name](model, make_rows())
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def main(argv: list[str] | None = None) -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--memory", choices=STEPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    register_tree_attention()
    tune_lm_head_for_cpu("cpu")
    if arguments.memory:
        measure_memory(arguments.memory)
        return 0
    memory = {name: peak_memory(name) for name in STEPS}
    model, rows = make_model(), make_rows()
    STEPS["packed"](model, rows)
    seconds: dict[str, list[float]] = {name: [] for name in STEPS}
    found: dict[str, torch.Tensor] = {}
    for _ in range(arguments.rounds):
        for name, step in STEPS.items():
            model.zero_grad()
            started = time.perf_counter()
            found[name] = step(model, rows)
            seconds[name].append(time.perf_counter() - started)
            print(f"{name}  {seconds[name][-1]:6.2f} s  peak {memory[name]:5.0f} MB beside weights and gradients")
    speed = statistics.median(seconds["padded"]) / statistics.median(seconds["packed"])
    ratio = sum(map(len, rows)) / pack_rows(rows).tree.length
    difference = float((found["padded"] - found["packed"]).abs().max())
    holds = speed >= MIN_SPEED and speed >= MIN_SHARE * ratio and memory["packed"] <= memory["padded"]
    result = {
        "bench": "tree_speed",
        "speedup": round(speed, 2),
        "token_ratio": round(ratio, 2),
        "share_of_token_ratio": round(speed / ratio, 2),
        "seconds": {name: [round(value, 2) for value in values] for name, values in seconds.items()},
        "peak_mb": {name: round(value) for name, value in memory.items()},
        "max_logp_difference": difference,
        "holds": holds,
    }
    print(json.dumps(result))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
