"""The objective against TRL's own loss, on random batches; the correction for another sampler by hand."""

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

from atommem.train.objective.loss import Objective, Tokens, correction
from atommem.train.objective.sequences import Row

BATCHES = 150
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {"epsilon_high": 0.28},
    "one epsilon": {"epsilon_high": 0.2},
    "two-sided": {"epsilon_high": 0.28, "delta": 1.6},
    "kl": {"beta": 0.3, "use_bias_correction_kl": False},
    "kl, corrected for the ratio": {"beta": 0.3, "use_bias_correction_kl": True},
    "corrected for the sampler": {"mode": "token_truncate", "clip_max": 1.2},
    "corrected for the sampler, kl": {"mode": "sequence_mask", "clip_max": 3.0, "beta": 0.1, "delta": 2.0},
}


def random_rows(rng: random.Random) -> list[Row]:
    """One to five rows of 2 to 7 sampled tokens (TRL reads a single column as one value per sequence)."""
    rows = []
    for index in range(rng.randint(1, 5)):
        logprobs = [-rng.uniform(0.1, 4) for _ in range(rng.randint(2, 7))]
        rows.append(Row([1], [2] * len(logprobs), logprobs, index, rng.uniform(-1, 1), rng.uniform(1, 2)))
    return rows


def trl_loss(
    objective: Objective, rows: list[Row], logps: torch.Tensor, old: torch.Tensor | None, ref: torch.Tensor, over: float
) -> tuple[torch.Tensor, dict[str, float]]:
    """TRL's `_compute_loss` and what it logs, on a stand-in for its trainer: weights as a mask, rows as a rectangle."""
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
        "tool_mask": rectangle(tokens.weights),
        "advantages": torch.tensor([row.advantage for row in rows]),
        "num_items_in_batch": torch.tensor(over),
        "old_per_token_logps": None if old is None else rectangle(old),
        "ref_per_token_logps": rectangle(ref),
    }
    if objective.mode:
        bounds = (objective.mode, objective.clip_min, objective.clip_max)
        inputs["importance_sampling_ratio"] = rectangle(correction(before - tokens.sampled, counts, *bounds))
    metrics: dict[str, dict[str, list[float]]] = {"train": defaultdict(list)}
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (rectangle(logps), rectangle(ref.abs()), None),
        _metrics=metrics,
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(num_processes=1, reduce=lambda x, reduction: x, gather=lambda x: x),
        args=SimpleNamespace(
            delta=objective.delta, use_bias_correction_kl=objective.use_bias_correction_kl, steps_per_generation=1
        ),
        epsilon_low=objective.epsilon,
        epsilon_high=objective.epsilon_high,
        beta=objective.beta,
        loss_type="dapo",
        importance_sampling_level="token",
        use_vllm=objective.mode is not None,
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
def test_loss_gradients_and_logged_means_are_trls(variant: str, on_policy: bool) -> None:
    objective = Objective(**{"epsilon": 0.2, "epsilon_high": 0.28, **VARIANTS[variant]})
    rng = random.Random(variant)
    torch.manual_seed(0)
    clipped = 0.0
    for _ in range(BATCHES):
        rows = random_rows(rng)
        tokens = Tokens.of(rows, torch.device("cpu"))
        logps = (tokens.sampled + 0.2 * torch.randn_like(tokens.sampled)).requires_grad_()
        old = None if on_policy else (tokens.sampled + 0.1 * torch.randn_like(tokens.sampled))
        ref, over = (
            tokens.sampled + 0.5 * torch.randn_like(tokens.sampled),
            rng.uniform(1, 3) * float(tokens.weights.sum()),
        )
        total, log = objective(logps, tokens, old, ref if objective.beta else None)
        expected, logged = trl_loss(objective, rows, logps, old, ref, over)
        assert (total / over).item() == pytest.approx(expected.item(), abs=1e-6)
        (got,), (wanted,) = torch.autograd.grad(total / over, logps), torch.autograd.grad(expected, logps)
        assert float((got - wanted).abs().max()) <= 1e-6
        means = {name: float((tokens.weights * value).sum() / tokens.weights.sum()) for name, value in log.items()}
        for name in set(means) - {"ratio"}:
            assert means[name] == pytest.approx(logged[name], abs=1e-6), name
        clipped += means["clip_ratio/region_mean"]
    assert (clipped > 0) is not on_policy


def test_tokens_lie_row_after_row() -> None:
    rows = [Row([1], [2, 3], [-0.1, -0.2], 0, 0.5, 1.0), Row([1], [4], [-0.3], 1, -0.5, 0.25)]
    tokens = Tokens.of(rows, torch.device("cpu"))
    assert tokens.counts == [2, 1]
    assert tokens.sampled.tolist() == pytest.approx([-0.1, -0.2, -0.3])
    assert tokens.advantages.tolist() == [0.5, 0.5, -0.5]
    assert tokens.weights.tolist() == [1.0, 1.0, 0.25]


@pytest.mark.parametrize(
    ("mode", "low", "high", "expected"),
    [
        ("token_truncate", None, None, [2.0, 1.0, 0.25, 1.0, 3.0]),
        ("token_truncate", 0.5, 2.5, [2.0, 1.0, 0.5, 1.0, 2.5]),
        ("token_mask", 0.5, 2.5, [2.0, 1.0, 0.0, 1.0, 0.0]),
        ("token_mask", None, 2.5, [2.0, 1.0, 0.25, 1.0, 0.0]),
        ("sequence_truncate", None, 1.5, [1.5, 1.5, 0.75, 0.75, 0.75]),
        ("sequence_mask", None, 1.5, [0.0, 0.0, 0.75, 0.75, 0.75]),
    ],
)
def test_corrections_of_two_rows(mode: str, low: float | None, high: float | None, expected: list[float]) -> None:
    difference = torch.tensor([math.log(ratio) for ratio in (2.0, 1.0, 0.25, 1.0, 3.0)])
    assert correction(difference, [2, 3], mode, low, high).tolist() == pytest.approx(expected)
