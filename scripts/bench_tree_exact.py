"""Is prefix-tree training exact?

    python scripts/bench_tree_exact.py [--model DIR] [--tries 40] [--episodes 6]

Log-probabilities and gradients from one packed row (`atommem.train.packing.micro_batch`,
`atommem.train.packing.tree_attention`) against the same
rows in a plain padded batch, in fp32, each with and without LoRA:

    random tries   rows that share prefixes of random lengths, on a small random Qwen3
    a real group   what six episodes of SmolLM2-135M-Instruct on one task of the synthetic world saw and sampled in
                   two steps

SmolLM2 is made by scripts/models.py (from PyPI) or comes from --model. The last line is one JSON object; the exit
code is 0 if and only if its "holds" is true: log-probabilities differ by at most 1e-4, gradients by at most 1e-4 of
their norm.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import models
import torch
from agents import make_agent
from peft import LoraConfig, get_peft_model
from quick import add_quick, command_line, last_line
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from trl.trainer.utils import add_fused_lm_head

from atommem.embedding.hashing import HashingEmbedder
from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.episode_runner import EpisodeRunner, Limits
from atommem.policy.local import LocalPolicy
from atommem.train.loops.models import tune_lm_head_for_cpu
from atommem.train.objective.rows import Row
from atommem.train.packing.micro_batch import pack_rows, pad_rows
from atommem.train.packing.tree_attention import register_tree_attention, use_tree_attention

LIMIT = 1e-4


def random_rows(rng: random.Random) -> list[Row]:
    """Up to 12 rows that branch off one another at random places."""

    def make_row(prompt: list[int]) -> Row:
        completion = rng.choices(range(60), k=rng.randint(1, 20))
        return Row(prompt, completion, [0.0] * len(completion), 0, 1.0, 1.0)

    rows = [make_row(rng.choices(range(60), k=rng.randint(20, 60)))]
    for _ in range(rng.randint(1, 11)):
        kept = rng.choice(rows).prompt_ids.tolist()
        rows.append(
            make_row(
                kept[: rng.randint(1, len(kept))] + rng.choices(range(60), k=rng.randint(0, 20))
            )
        )
    return rows


def real_rows(model: Any, tokenizer: Any, episodes: int) -> list[Row]:
    """The first two steps of a group of episodes: real prompts, real completions."""
    task = next(iter(generate(WorldConfig(prose="plain", distractors=4), 1, 0)))
    settings = {
        "templates": "compact",
        "chunk_tokens": 100,
        "max_reads": 0,
        "max_tokens": 12,
        "seed": 0,
    }
    policy = LocalPolicy(model, tokenizer)
    agent = make_agent(
        policy, HashingEmbedder(64), keep_prompts=True, temperature=1.0, stored=settings
    )
    runner = EpisodeRunner(agent, limits=Limits(max_steps=2))
    group = asyncio.run(runner.run_all([(task, sample) for sample in range(episodes)]))
    return [
        Row(s.prompt_ids, s.token_ids, s.logprobs, i, 1, 1)
        for i, e in enumerate(group)
        for s in e.steps
    ]


def padded(model: Any, rows: Sequence[Row], weights: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of all completion tokens, rows one after the other, from padded batches of four; leaves the
    gradients of their weighted sum.
    """
    found: list[torch.Tensor] = []
    for start in range(0, len(rows), 4):
        part = rows[start : start + 4]
        logps, _ = pad_rows(part, 0).score(model)
        begin = sum(map(len, found))
        (logps * weights[begin : begin + len(logps)]).sum().backward()
        found.append(logps.detach())
    return torch.cat(found)


def packed(model: Any, rows: Sequence[Row], weights: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The same from one packed row, and how many tokens it saves."""
    trie = pack_rows(rows)
    logps, _ = trie.score(model)
    (logps * weights[: len(logps)]).sum().backward()
    return logps.detach(), sum(map(len, rows)) / trie.computed


def gradients(model: Any) -> torch.Tensor:
    """All of them in one vector; the model keeps none."""
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return found


def compare(model: Any, rows: Sequence[Row], weights: torch.Tensor) -> tuple[float, float, float]:
    """Largest difference of log-probabilities, relative difference of gradients, packing ratio."""
    expected = padded(model, rows, weights)
    wanted = gradients(model)
    with use_tree_attention(model):
        got, ratio = packed(model, rows, weights)
    error = (gradients(model) - wanted).norm() / wanted.norm()
    return float((got - expected).abs().max()), float(error), ratio


def with_lora(model: Any) -> Any:
    """An adapter whose two halves are both random, so that it changes what the model computes."""
    torch.manual_seed(0)
    return get_peft_model(
        model, LoraConfig(r=8, target_modules="all-linear", init_lora_weights=False)
    )


def main(argv: list[str] | None = None) -> int:
    """Run the comparison."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--model", type=Path, help="folder of SmolLM2 (unset: of scripts/models.py)"
    )
    parser.add_argument("--tries", type=int, default=40)
    parser.add_argument("--episodes", type=int, default=6, help="of the real group")
    add_quick(parser, tries=2, episodes=2)
    arguments = parser.parse_args(argv)
    folder = arguments.model or models.smollm2()
    register_tree_attention()
    tune_lm_head_for_cpu("cpu")
    torch.manual_seed(0)
    weights = torch.randn(100_000)
    small = Qwen3Config(
        vocab_size=60, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512,
    )  # fmt: skip
    tiny, smol = (
        Qwen3ForCausalLM(small),
        AutoModelForCausalLM.from_pretrained(folder, dtype="float32"),
    )
    group = real_rows(smol, AutoTokenizer.from_pretrained(folder), arguments.episodes)
    worst: dict[str, dict[str, float]] = {}
    for name, model in (("random", tiny), ("real", smol)):
        add_fused_lm_head(model)
        for suffix, lora in (("", False), ("_lora", True)):
            model = with_lora(model) if lora else model
            rng = random.Random(0)
            cases = (
                [random_rows(rng) for _ in range(arguments.tries)] if name == "random" else [group]
            )
            results = [compare(model, rows, weights) for rows in cases]
            logp, gradient, ratio = (max(values) for values in zip(*results, strict=True))
            worst[name + suffix] = {
                "logp": logp,
                "gradient": gradient,
                "packing_ratio": round(ratio, 2),
            }
            print(
                f"{name + suffix:12}  {len(cases):3} tries  log-prob {logp:.1e}  gradient {gradient:.1e}  "
                f"packing up to {ratio:.2f}x"
            )
    holds = all(case["logp"] <= LIMIT and case["gradient"] <= LIMIT for case in worst.values())
    return last_line({"bench": "tree_exact", **worst, "limit": LIMIT, "holds": holds})


if __name__ == "__main__":
    raise SystemExit(main())
