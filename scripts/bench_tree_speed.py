"""What does prefix-tree training save, and where does it not?

    python scripts/bench_tree_speed.py [--rounds 2]

Forward and backward pass of one group on a Qwen3 of width 512 with 6 layers (20M parameters), fp32, rows of random
tokens. Side by side, alternating:

    padded   what TRL's trainer runs for these rows: `GRPOTrainer._get_per_token_logps_and_entropies`
    packed   the same rows as token tries (`atommem.train.packing.micro_batch`, `atommem.train.packing.tree_attention`)

1. Curves: 16 rows whose prompts share 1,200 tokens and have 150 of their own, completions of 60; speed and peak memory
   over the rows of a micro-batch (of a trie: rows that share their prefix). A trie of all rows is the fastest and
   needs the most memory; a padded row alone needs the least.
2. Shapes: every arm at its fastest micro-batch of part 1. Also those where little is shared, or nothing.

Peak memory is that of a process that runs only one of them, beside weights and gradients. The last line is one JSON
object; the exit code is 0 if and only if its "holds" is true: at its fastest, packed is at least 4.0 times as fast as
padded at its fastest, and has at least 85% of what raw / distinct tokens allow; and where nothing is shared, 90% of
padded's speed is left.
"""

from __future__ import annotations

import inspect
import random
import statistics
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from peak_memory import peak_megabytes
from quick import add_quick, command_line, in_a_process, last_line
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from atommem.train.loops.models import tune_lm_head_for_cpu
from atommem.train.objective.rows import Row
from atommem.train.packing.micro_batch import pack_rows
from atommem.train.packing.tree_attention import register_tree_attention, use_tree_attention

VOCABULARY = 2048
MIN_SPEED, MIN_SHARE, MIN_UNSHARED = 4.0, 0.85, 0.9
ARMS = ("padded", "packed")


@dataclass(frozen=True)
class Shape:
    """A group: rows, shared and own tokens of their prompts, tokens of their completions."""

    rows: int
    shared: int
    own: int
    completion: int

    def make(self) -> list[Row]:
        """Rows of random tokens."""
        rng = random.Random(0)

        def tokens(count: int) -> list[int]:
            return rng.choices(range(VOCABULARY), k=count)

        shared = tokens(self.shared)
        return [
            Row(shared + tokens(self.own), tokens(self.completion), [], 0, 1.0, 1.0)
            for _ in range(self.rows)
        ]


SHAPE = Shape(16, 1200, 150, 60)
SHAPES = {
    "long chunk": Shape(16, 3000, 300, 60),
    "group of 8": Shape(8, 1200, 150, 60),
    "group of 4": Shape(4, 1200, 150, 60),
    "long memory": Shape(16, 900, 600, 60),
    "long completions": Shape(16, 900, 150, 500),
    "memory first": Shape(16, 300, 1050, 60),
    "nothing shared": Shape(16, 0, 1350, 60),
}
QUICK = Shape(4, 60, 20, 10)


def make_model() -> Any:
    """About 20M parameters, random."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=512, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=4, head_dim=64, max_position_embeddings=8192, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).train()
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model


def passes(model: Any, rows: list[Row], arm: str, size: int) -> torch.Tensor:
    """Forward and backward passes over micro-batches of `size` rows, packing included; the log-probabilities."""
    trainer = SimpleNamespace(accelerator=SimpleNamespace(autocast=torch.enable_grad))
    # TRL's own method, on a stand-in for its trainer, without the decorator that reports its time to wandb.
    method = inspect.unwrap(GRPOTrainer._get_per_token_logps_and_entropies)
    found = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        count = len(part[0].completion_ids)
        if arm == "padded":
            ids = torch.tensor([row.ids.tolist() for row in part])
            logps, _, _ = method(
                trainer, model, ids, torch.ones_like(ids), count, compute_entropy=True
            )
            (-logps.sum()).backward()
        else:
            with use_tree_attention(model):
                logps, _ = pack_rows(part).score(model)
                (-logps.sum()).backward()
        found.append(logps.detach().view(len(part), count))
    return torch.cat(found)


def prepare() -> None:
    """What a process needs before it runs either arm."""
    register_tree_attention()
    tune_lm_head_for_cpu("cpu")


def peak_memory(shape: Shape, arm: str, size: int) -> float:
    """MB that this process, which has done nothing else, needs for these passes beyond the model and its gradients."""
    prepare()
    model = make_model()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = peak_megabytes()
    passes(model, shape.make(), arm, size)
    return peak_megabytes() - before


def time_all(
    model: Any, shape: Shape, sizes: dict[str, list[int]], rounds: int
) -> tuple[dict[str, Any], float]:
    """Median seconds by arm and micro-batch, in turn; and the largest difference between the arms' results."""
    rows = shape.make()
    cases = [(arm, size) for arm in ARMS for size in sizes[arm]]
    seconds: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    first = {}
    for _ in range(rounds):
        for case in cases:
            model.zero_grad()
            started = time.perf_counter()
            first[case[0]] = passes(model, rows, *case)
            seconds[case].append(time.perf_counter() - started)
    found: dict[str, Any] = {arm: {} for arm in ARMS}
    for (arm, size), values in seconds.items():
        found[arm][size] = statistics.median(values)
    return found, float((first["padded"] - first["packed"]).abs().max())


def main(argv: list[str] | None = None) -> int:
    """Run the comparison."""
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    add_quick(parser, rounds=1)
    arguments = parser.parse_args(argv)
    prepare()
    shape, shapes = (
        (QUICK, {"nothing shared": Shape(4, 0, 80, 10)}) if arguments.quick else (SHAPE, SHAPES)
    )
    model = make_model()
    passes(model, QUICK.make(), "packed", 4)
    sizes = [2**power for power in range(5) if 2**power <= shape.rows]
    if arguments.quick:
        sizes = sizes[-1:]  # each is a process of its own, for its memory
    seconds, difference = time_all(model, shape, dict.fromkeys(ARMS, sizes), arguments.rounds)
    curves = {}
    for arm in ARMS:
        curves[arm] = {
            size: {
                "seconds": round(seconds[arm][size], 2),
                "peak_mb": round(in_a_process(peak_memory, shape, arm, size)),
            }
            for size in sizes
        }
        for size, point in curves[arm].items():
            print(
                f"{arm:<8}{size:>3} rows a micro-batch{point['seconds']:>8.2f} s  peak {point['peak_mb']:>5} MB"
            )
    fastest = {arm: min(sizes, key=seconds[arm].__getitem__) for arm in ARMS}
    least = min(point["peak_mb"] for point in curves["padded"].values())
    within = [size for size in sizes if curves["packed"][size]["peak_mb"] <= least]
    results = {"curves": _figures(shape, seconds, fastest)}
    for name, other in shapes.items():
        best = {arm: [min(size, other.rows)] for arm, size in fastest.items()}
        found, error = time_all(model, other, best, arguments.rounds)
        difference = max(difference, error)
        results[name] = _figures(other, found, {arm: size for arm, (size,) in best.items()})
    for name, one in results.items():
        print(f"{name:<18}{one['speed']:>6.2f}x of {one['token_ratio']:>5.2f}x  {one['shape']}")
    main_result = results["curves"]
    holds = (
        main_result["speed"] >= MIN_SPEED
        and main_result["speed"] >= MIN_SHARE * main_result["token_ratio"]
        and results["nothing shared"]["speed"] >= MIN_UNSHARED
    )
    result = {
        "bench": "tree_speed",
        "curves": curves,
        "fastest": fastest,
        "memory_ratio_at_fastest": round(
            curves["packed"][fastest["packed"]]["peak_mb"]
            / max(1, curves["padded"][fastest["padded"]]["peak_mb"]),
            2,
        ),
        "speed_within_least_padded_memory": (
            round(
                seconds["padded"][fastest["padded"]]
                / min(seconds["packed"][size] for size in within),
                2,
            )
            if within
            else None
        ),
        "shapes": results,
        "max_logp_difference": difference,
        "holds": holds,
    }
    return last_line(result)


def _figures(shape: Shape, seconds: dict[str, Any], fastest: dict[str, int]) -> dict[str, Any]:
    rows = shape.make()
    speed = seconds["padded"][fastest["padded"]] / seconds["packed"][fastest["packed"]]
    ratio = sum(map(len, rows)) / pack_rows(rows).computed
    described = (
        f"{shape.rows} rows, {shape.shared} shared, {shape.own} own, {shape.completion} sampled"
    )
    return {"shape": described, "speed": round(speed, 2), "token_ratio": round(ratio, 2)}


if __name__ == "__main__":
    raise SystemExit(main())
