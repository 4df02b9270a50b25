"""A real vLLM server at temperature .7: its log-probabilities equal those of training."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from trl.trainer.utils import add_fused_lm_head

from atommem.config import MemoryConfig
from atommem.demo.recipe import PolicySize
from atommem.demo.tiny_policy import make_model, make_tokenizer
from atommem.envs.synthetic.world import WorldConfig
from atommem.policy.contract import Sampling
from atommem.policy.server import ServerPolicy
from atommem.train.objective.loss import correction
from atommem.train.objective.rows import Row
from atommem.train.packing.micro_batch import pad_rows
from tests.fakes import load_script

TEMPERATURE = 0.7

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "VLLM_PYTHON" not in os.environ, reason="VLLM_PYTHON names no environment with vLLM"
    ),
]


def sampled(url: str, tokenizer: Any) -> list[Row]:
    """Thirty-two completions of other prompts each."""

    async def run() -> list[Row]:
        policy = ServerPolicy(url, "policy", tokenizer=tokenizer, scaled_logprobs=True)
        prompts = [[5 + i, 6, 7 + i % 5] for i in range(32)]
        sampling = Sampling(TEMPERATURE, max_tokens=16)
        done = await asyncio.gather(*(policy.complete(prompt, sampling) for prompt in prompts))
        await policy.close()
        pairs = zip(prompts, done, strict=True)
        return [Row(prompt, c.token_ids, c.logprobs, 0, 1.0, 1.0) for prompt, c in pairs]

    return asyncio.run(run())


def test_sampled_logprobs_at_a_temperature_equal_those_of_training(tmp_path: Path) -> None:
    vllm_server = load_script("common").vllm_server
    world = WorldConfig(prose="compact", names=16, facts_per_document=2)
    tokenizer = make_tokenizer(
        world, MemoryConfig(templates="compact", scratchpad_tokens=32, retrieve_k=2)
    )
    torch.manual_seed(0)
    model = make_model(PolicySize(head_width=32), tokenizer)  # vLLM on CPU has no heads of 16
    with torch.no_grad():
        model.lm_head.weight.mul_(30)  # far from uniform: else the temperature would hardly matter
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    flags = ["--max-model-len", "256", "--block-size", "32", "--logprobs-mode"]
    flags.append("processed_logprobs")
    with vllm_server(tmp_path / "model", tmp_path / "log", *flags) as server:
        rows = sampled(server.url, tokenizer)
    add_fused_lm_head(model, temperature=TEMPERATURE, outputs=("log_probs", "entropy"))
    with torch.no_grad():
        trained, _ = pad_rows(rows, tokenizer.pad_token_id).score(model.eval())
    difference = trained - torch.tensor([logprob for row in rows for logprob in row.logprobs])
    assert (difference.exp() - 1).abs().max() <= 1e-3
    _, masked = correction(
        difference, [len(row.logprobs) for row in rows], "sequence_mask", None, 3.0
    )
    assert not masked.any()
