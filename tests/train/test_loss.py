"""The policy loss against TRL's, on random batches; the correction by hand."""

from __future__ import annotations

import inspect
import math
import random
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from atommem.train.objective.loss import MASKED, PolicyLoss, correction
from atommem.train.objective.rows import (
    LOSS_TYPES,
    EpisodeSize,
    Row,
    Tokens,
    normalizer,
    token_weight,
)

VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {"beta": 0.001},
    "kl, corrected for the ratio": {"beta": 0.3, "use_bias_correction_kl": True},
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "beta": 0.1},
    "gspo, by tokens, kl": {"importance_sampling_level": "sequence", "beta": 0.3, "delta": 1.6},
    "cispo, kl": {"loss_type": "cispo", "epsilon_high": 1.1, "beta": 0.2},
    "corrected for the sampler, kl": {
        "mode": "sequence_mask",
        "clip_max": 3.0,
        "beta": 0.1,
        "delta": 2.0,
    },
    "cispo, corrected": {
        "loss_type": "cispo",
        "epsilon_high": 5.0,
        "mode": "token_mask",
        "clip_min": 0.8,
        "clip_max": 1.2,
    },
}
LONGEST = 9
"""Length of every completion for dr_grpo."""


def make_loss(settings: dict[str, Any]) -> PolicyLoss:
    sampler = ("mode", "clip_min", "clip_max")
    named = {
        f"vllm_importance_sampling_{key}" if key in sampler else key: settings[key]
        for key in settings
    }
    return PolicyLoss(**{"epsilon": 0.2, "epsilon_high": 0.28, **named})


def random_rows(rng: random.Random, normalization: str) -> list[Row]:
    """One to five rows of 2 to 7 tokens (TRL reads a single column per sequence)."""
    rows = []
    for index in range(rng.randint(1, 5)):
        logprobs = [-rng.uniform(0.1, 4) for _ in range(rng.randint(2, 7))]
        weight = token_weight(len(logprobs), EpisodeSize(len(logprobs), 1), normalization)
        rows.append(Row([1], [2] * len(logprobs), logprobs, index, rng.uniform(-1, 1), weight))
    return rows


def trl_loss(
    policy_loss: PolicyLoss,
    rows: list[Row],
    logps: torch.Tensor,
    old: torch.Tensor | None,
    ref: torch.Tensor,
    over: float,
) -> tuple[torch.Tensor, dict[str, float]]:
    """TRL's `_compute_loss` and what it logs, on a stand-in for its trainer: rows as a rectangle.

    `over` is the number of completion tokens in the global batch.
    """
    counts = [len(row.logprobs) for row in rows]
    mask = torch.arange(max(counts)) < torch.tensor(counts)[:, None]

    def rectangle(values: torch.Tensor) -> torch.Tensor:
        return torch.zeros(mask.shape, dtype=values.dtype).masked_scatter(mask, values)

    tokens, before = Tokens.of(rows, torch.device("cpu")), logps.detach() if old is None else old
    inputs = {
        "prompt_ids": torch.ones(len(rows), 1),
        "prompt_mask": torch.ones(len(rows), 1),
        "completion_ids": torch.ones(mask.shape),
        "completion_mask": mask.float(),
        "advantages": torch.tensor([row.advantage for row in rows]),
        "num_items_in_batch": torch.tensor(over),
        "old_per_token_logps": None if old is None else rectangle(old),
        "ref_per_token_logps": rectangle(ref),
    }
    mode = policy_loss.vllm_importance_sampling_mode
    if mode:
        bounds = (
            policy_loss.vllm_importance_sampling_clip_min,
            policy_loss.vllm_importance_sampling_clip_max,
        )
        inputs["importance_sampling_ratio"] = rectangle(
            correction(before - tokens.logprobs, counts, mode, *bounds)[0]
        )
    metrics: dict[str, dict[str, list[float]]] = {"train": defaultdict(list)}
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (
            rectangle(logps),
            rectangle(ref.abs()),
            None,
        ),
        _metrics=metrics,
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(
            num_processes=1, reduce=lambda x, reduction: x, gather=lambda x: x
        ),
        args=SimpleNamespace(
            delta=policy_loss.delta,
            use_bias_correction_kl=policy_loss.use_bias_correction_kl,
            steps_per_generation=1,
        ),
        epsilon_low=policy_loss.epsilon,
        epsilon_high=policy_loss.epsilon_high,
        beta=policy_loss.beta,
        loss_type=policy_loss.loss_type,
        importance_sampling_level=policy_loss.importance_sampling_level,
        max_completion_length=LONGEST,
        use_vllm=mode is not None,
        vllm_importance_sampling_correction=True,
        current_gradient_accumulation_steps=1,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
    )
    loss = inspect.unwrap(GRPOTrainer._compute_loss)(trainer, None, inputs)
    return loss, {name: value for name, (value,) in metrics["train"].items()}


@pytest.mark.parametrize("on_policy", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_policy_loss_equals_trl(variant: str, on_policy: bool) -> None:
    policy_loss = make_loss(VARIANTS[variant])
    normalization = LOSS_TYPES[policy_loss.loss_type]
    rng = random.Random(variant)
    torch.manual_seed(0)
    clipped = 0.0
    for _ in range(60):
        rows = random_rows(rng, normalization)
        tokens = Tokens.of(rows, torch.device("cpu"))
        logps = (tokens.logprobs + 0.2 * torch.randn_like(tokens.logprobs)).requires_grad_()
        old = None if on_policy else (tokens.logprobs + 0.1 * torch.randn_like(tokens.logprobs))
        ref = tokens.logprobs + 0.5 * torch.randn_like(tokens.logprobs)
        # The rest of the global batch: tokens of other ranks, where the loss counts tokens.
        others = [EpisodeSize(rng.randint(0, 9), 1)] if normalization == "token" else []
        sizes = others + [EpisodeSize(count, 1) for count in tokens.counts]
        total, log = policy_loss(logps, tokens, old, ref if policy_loss.beta else None)
        loss = total / normalizer(sizes, normalization, LONGEST)
        expected, logged = trl_loss(
            policy_loss, rows, logps, old, ref, sum(size.tokens for size in sizes)
        )
        assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
        (got,), (wanted,) = torch.autograd.grad(loss, logps), torch.autograd.grad(expected, logps)
        assert float((got - wanted).abs().max()) <= 1e-6
        # TRL counts a sequence's ratio once, and tokens alike whatever they weigh.
        once = policy_loss.importance_sampling_level == "sequence"
        for name in set(log) - {"ratio", MASKED}:
            values = log[name].float()
            if once and name != "kl":
                values = torch.stack([row.mean() for row in values.split(tokens.counts)])
            assert float(values.mean()) == pytest.approx(logged[name], abs=1e-6), name
        clipped += float(
            log.get("clip_ratio/region_mean", log.get("cispo_clip_ratio")).float().sum()
        )
    never = on_policy or (variant == "cispo, corrected")
    assert (clipped == 0) is never


@pytest.mark.parametrize(
    ("mode", "low", "high", "expected"),
    [
        ("token_truncate", 0.5, 2.5, [2.0, 1.0, 0.5, 1.0, 2.5]),
        ("token_mask", 0.5, 2.5, [2.0, 1.0, 0.0, 1.0, 0.0]),
        ("sequence_truncate", None, 1.5, [1.5, 1.5, 0.75, 0.75, 0.75]),
        ("sequence_mask", None, 1.5, [0.0, 0.0, 0.75, 0.75, 0.75]),
    ],
)
def test_correction_equals_numbers_by_hand(
    mode: str, low: float | None, high: float | None, expected: list[float]
) -> None:
    difference = torch.tensor([math.log(ratio) for ratio in (2.0, 1.0, 0.25, 1.0, 3.0)])
    factor, changed = correction(difference, [2, 3], mode, low, high)
    assert factor.tolist() == pytest.approx(expected)
    ratio = torch.tensor(
        [2.0, 1.0, 0.25, 1.0, 3.0] if mode.startswith("token") else [2.0, 2.0, 0.75, 0.75, 0.75]
    )
    assert changed.tolist() == (~torch.isclose(factor, ratio)).tolist()
