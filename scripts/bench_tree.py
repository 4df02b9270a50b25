"""Is prefix-tree training exact, and what does it save?

    OMP_NUM_THREADS=1 python scripts/bench_tree.py [--tries 40] [--rounds 2] [--model DIR]

exact   Log-probabilities and gradients of rows packed as one token trie against padded batches of
        four, float32, with and without LoRA, on a small random Qwen3 and, with --model (SmolLM2 of
        scripts/models.py), real weights. The bar is 1e-4, for gradients relative to their norm.
speed   Forward and backward passes of a group on a Qwen3 of 20M parameters: token tries against
        TRL's padded rows (`GRPOTrainer._get_per_token_logps_and_entropies`), at their fastest
        number of rows at a time, in favourable and unfavourable shapes. The bar: 4x and 85% of raw
        / distinct tokens where 1,200 of 1,410 tokens are shared, and 90% where nothing is shared.
"""

import inspect
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from common import last_line, read_options
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from atommem.train.loops.models import tune_lm_head_for_cpu
from atommem.train.objective.rows import Row
from atommem.train.packing.micro_batch import pack_rows, pad_rows
from atommem.train.packing.tree_attention import use_tree_attention

LIMIT = 1e-4
MIN_SPEED, MIN_SHARE, MIN_UNSHARED = 4.0, 0.85, 0.9


@dataclass(frozen=True)
class Shape:
    """Rows of a group, shared and own tokens of their prompts, and tokens of their completions."""

    rows: int
    shared: int
    own: int
    completion: int


SHAPES = {
    "bar": Shape(16, 1200, 150, 60),
    "long chunk": Shape(16, 3000, 300, 60),
    "group of 4": Shape(4, 1200, 150, 60),
    "long memory": Shape(16, 900, 600, 60),
    "long completions": Shape(16, 900, 150, 500),
    "memory first": Shape(16, 300, 1050, 60),
    "nothing shared": Shape(16, 0, 1350, 60),
}
QUICK_SHAPES = {"bar": Shape(4, 60, 20, 10), "nothing shared": Shape(4, 0, 80, 10)}


def random_model(layers: int, width: int, vocabulary: int) -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        **{"vocab_size": vocabulary, "hidden_size": width, "intermediate_size": 3 * width},
        **{"num_hidden_layers": layers, "num_attention_heads": width // 64 or 1},
        **{"num_key_value_heads": width // 128 or 1, "head_dim": 64},
        max_position_embeddings=8192,
    )
    return Qwen3ForCausalLM(config).train()


def branching_rows(rng: random.Random, vocabulary: int) -> list[Row]:
    """Up to 12 rows that branch off one another at random places."""

    def tokens(low: int, high: int) -> list[int]:
        return rng.choices(range(vocabulary), k=rng.randint(low, high))

    prompts = [tokens(20, 60)]
    for _ in range(rng.randint(1, 11)):
        prompt = rng.choice(prompts)
        prompts.append(prompt[: rng.randint(1, len(prompt))] + tokens(0, 20))
    completions = [tokens(1, 20) for _ in prompts]
    pairs = zip(prompts, completions, strict=True)
    return [Row(prompt, sampled, [0.0] * len(sampled), 1.0, 1.0) for prompt, sampled in pairs]


def score(model: Any, rows: Sequence[Row], packed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    weights = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    model.zero_grad()
    found: list[torch.Tensor] = []
    size = len(rows) if packed else 4
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        with use_tree_attention(model) if packed else nullcontext():
            logps, _ = (pack_rows(part) if packed else pad_rows(part, 0)).score(model)
            begin = sum(map(len, found))
            (logps * weights[begin : begin + len(logps)]).sum().backward()
        found.append(logps.detach())
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(found), torch.cat(gradients)


def largest_errors(model: Any, groups: Sequence[Sequence[Row]]) -> dict[str, float]:
    """Largest difference of log-probabilities, and of gradients relative to their norm."""
    logps, gradients = 0.0, 0.0
    for rows in groups:
        one, one_gradient = score(model, rows, True)
        other, other_gradient = score(model, rows, False)
        logps = max(logps, float((one - other).abs().max()))
        error = (one_gradient - other_gradient).norm() / other_gradient.norm()
        gradients = max(gradients, float(error))
    return {"logps": logps, "gradients": gradients}


def exactness(tries: int, folder: Path | None) -> dict[str, dict[str, float]]:
    models = {"random": random_model(3, 64, 60)}
    if folder is not None:
        models["real"] = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    found = {}
    for name, model in models.items():
        rng = random.Random(0)
        groups = [branching_rows(rng, 60) for _ in range(tries if name == "random" else 2)]
        add_fused_lm_head(model)
        found[name] = largest_errors(model, groups)
        config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        found[f"{name}, LoRA"] = largest_errors(get_peft_model(model, config), groups)
    return found


def group_rows(shape: Shape) -> list[Row]:
    rng = random.Random(0)

    def tokens(count: int) -> list[int]:
        return rng.choices(range(2048), k=count)

    shared = tokens(shape.shared)
    prompts = [shared + tokens(shape.own) for _ in range(shape.rows)]
    return [Row(prompt, tokens(shape.completion), [], 1.0, 1.0) for prompt in prompts]


def run_passes(model: Any, rows: list[Row], packed: bool, size: int) -> None:
    """Forward and backward passes over micro-batches of `size` rows, packing included."""
    trainer = SimpleNamespace(accelerator=SimpleNamespace(autocast=torch.enable_grad))
    # TRL's own method without the decorator that reports its time to W&B.
    method = inspect.unwrap(GRPOTrainer._get_per_token_logps_and_entropies)
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        if packed:
            with use_tree_attention(model):
                logps, _ = pack_rows(part).score(model)
                (-logps.sum()).backward()
        else:
            ids = torch.tensor([row.ids.tolist() for row in part])
            count = len(part[0].completion_ids)
            ones = torch.ones_like(ids)
            logps, *_ = method(trainer, model, ids, ones, count, compute_entropy=True)
            (-logps.sum()).backward()


def seconds_of(model: Any, rows: list[Row], packed: bool, size: int, rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        model.zero_grad()
        started = time.perf_counter()
        run_passes(model, rows, packed, size)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def measure_shape(model: Any, shape: Shape, size: int, rounds: int) -> dict[str, float]:
    rows = group_rows(shape)
    packed = seconds_of(model, rows, True, shape.rows, rounds)
    padded = seconds_of(model, rows, False, min(size, shape.rows), rounds)
    tokens = sum(map(len, rows)) / pack_rows(rows).computed
    found = {"packed_seconds": packed, "speed": padded / packed, "token_ratio": tokens}
    return {name: round(value, 2) for name, value in found.items()}


def main() -> int:
    options = read_options(__doc__, tries=(40, 2), rounds=(2, 1), model=Path)
    tune_lm_head_for_cpu("cpu")
    errors = exactness(options.tries, options.model)
    for name, found in errors.items():
        print(f"{name:<14}", *(f"{part} {error:.1e}" for part, error in found.items()))
    model = random_model(*((2, 64, 2048) if options.quick else (6, 512, 2048)))
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    run_passes(model, group_rows(QUICK_SHAPES["bar"]), True, 4)
    shapes = QUICK_SHAPES if options.quick else SHAPES
    rows = group_rows(shapes["bar"])
    trials = {size: seconds_of(model, rows, False, size, 1) for size in (1, 2, 4, 8, 16)}
    fastest = min(trials, key=trials.__getitem__)
    speeds = {}
    for name, shape in shapes.items():
        speeds[name] = measure_shape(model, shape, fastest, options.rounds)
        print(f"{name:<18} {speeds[name]}", flush=True)
    bar = speeds["bar"]
    fast = bar["speed"] >= max(MIN_SPEED, MIN_SHARE * bar["token_ratio"])
    fast &= speeds["nothing shared"]["speed"] >= MIN_UNSHARED
    exact = all(value <= LIMIT for found in errors.values() for value in found.values())
    holds = exact and (fast or options.quick)
    return last_line({"bench": "tree", "exact": errors, "speed": speeds, "holds": holds})


if __name__ == "__main__":
    raise SystemExit(main())
