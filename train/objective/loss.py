"""The policy loss of an update; settings have TRL's names.

GRPO (arXiv 2402.03300) as in AtomMem (arXiv 2601.08323), and the field's variants. With advantage A
and token weight w (`atommem.train.objective.rows`), summed over the completion tokens of a
micro-batch (`UpdateStep` divides by the update's normalizer)::

    loss       = sum(w * (correction * surrogate + beta * kl))
    surrogate  = -min(min(r, delta) * A, clip(r, 1 - epsilon, 1 + epsilon_high) * A)    most types
               = -stop_gradient(min(r, epsilon_high)) * A * log pi          cispo
    r          = pi / pi_old
    kl         = exp(ref - logp) - (ref - logp) - 1       k3; times r with use_bias_correction_kl
    correction = pi_old / pi_sampler                      truncated or masked, with vLLM

With `importance_sampling_level` sequence (GSPO, arXiv 2507.18071), r is the geometric mean of the
ratios of a row: one step, sampled from its own prompt. On-policy, pi_old is pi: r is 1, and its
gradient is that of log pi. `tests/train/test_objective.py` compares values, gradients and
logged means with TRL's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from atommem.train.objective.rows import QUARTERS, Tokens, sums_of_quarters

MASKED = "sampling/masked_fraction"  # share of tokens masked, truncated or corrected below 0.01
CORRECTION = "sampling/correction"
"""Logged: the correction's mean, 1 if it is neutral, and in quarters of rows by length (_q1: the
shortest completions, ... _q4)."""


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The loss with its settings; ``vllm_importance_sampling_mode`` None means no correction."""

    epsilon: float
    epsilon_high: float
    delta: float | None = None
    beta: float = 0.0
    use_bias_correction_kl: bool = True
    loss_type: str = "dapo"
    importance_sampling_level: str = "token"
    vllm_importance_sampling_mode: str | None = None
    vllm_importance_sampling_clip_min: float | None = None
    vllm_importance_sampling_clip_max: float | None = None

    def __call__(
        self,
        logps: torch.Tensor,
        tokens: Tokens,
        old_logps: torch.Tensor | None = None,
        ref_logps: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the weighted sum of the token losses, and what is logged of each token.

        Log-probabilities (nats) are (M,): under the trained policy, before the update (unset:
        on-policy), and of the reference model (if `beta` is not 0).
        """
        advantages, old = tokens.advantages, logps.detach() if old_logps is None else old_logps
        log_ratio = logps - old
        if self.importance_sampling_level == "sequence":
            log_ratio = reduce_by_row(torch.mean, log_ratio, tokens.counts)
        ratio = torch.exp(log_ratio)
        if self.loss_type == "cispo":
            losses = -ratio.detach().clamp(max=self.epsilon_high) * advantages * logps
            log = {"cispo_clip_ratio": (ratio > self.epsilon_high) & (advantages > 0)}
        else:
            least, most = 1 - self.epsilon, 1 + self.epsilon_high
            # Without `delta` the ratio is unbounded where the advantage is negative.
            bounded = ratio if self.delta is None else ratio.clamp(max=self.delta)
            losses = -torch.min(bounded * advantages, ratio.clamp(least, most) * advantages)
            low, high = (ratio < least) & (advantages < 0), (ratio > most) & (advantages > 0)
            log = {
                "clip_ratio/low_mean": low,
                "clip_ratio/high_mean": high,
                "clip_ratio/region_mean": low | high,
            }
        log["ratio"] = ratio
        if self.vllm_importance_sampling_mode is not None:
            bounds = self.vllm_importance_sampling_clip_min, self.vllm_importance_sampling_clip_max
            log[CORRECTION], log[MASKED] = correction(
                old - tokens.logprobs, tokens.counts, self.vllm_importance_sampling_mode, *bounds
            )
            losses = losses * log[CORRECTION]
        if ref_logps is not None:
            log["kl"] = torch.exp(ref_logps - logps) - (ref_logps - logps) - 1
            log["kl"] = log["kl"] * (ratio if self.use_bias_correction_kl else 1.0)
            losses = losses + self.beta * log["kl"]
        log = {name: value.detach() for name, value in log.items()}
        return (tokens.weights * losses).sum(), log


def correction(
    log_ratio: torch.Tensor,
    counts: Sequence[int],
    mode: str,
    clip_min: float | None,
    clip_max: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bounded ratio pi_old / pi_sampler of each token, and which ones are `MASKED`.

    `log_ratio` is (M,) log pi_old - log pi_sampler. Mode ``token_...``: a ratio per token;
    ``sequence_...``: one per row, the product over its tokens. ``..._truncate`` clamps it;
    ``..._mask`` sets values out of bounds to 0.
    """
    if mode.startswith("sequence"):
        log_ratio = reduce_by_row(torch.sum, log_ratio, counts)
    ratio = torch.exp(log_ratio)
    bounded = ratio if clip_min is None and clip_max is None else ratio.clamp(clip_min, clip_max)
    outside = bounded != ratio
    factor = bounded if mode.endswith("truncate") else ratio.masked_fill(outside, 0.0)
    return factor, outside | (ratio < 0.01)


def reduce_by_row(
    reduce: Callable[[torch.Tensor], torch.Tensor], values: torch.Tensor, counts: Sequence[int]
) -> torch.Tensor:
    """Return `reduce` of each row's values at each of its tokens."""
    return torch.cat([reduce(row).expand(len(row)) for row in values.split(list(counts))])


def corrections_by_length(rows: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return the mean correction by quarter, of (tokens, weight, weighted correction) by row."""
    lengths, weights, sums = np.array([row for row in rows if row[1]]).T
    means = sums_of_quarters(sums, lengths) / sums_of_quarters(weights, lengths)
    return {f"{CORRECTION}_{q}": mean for q, mean in zip(QUARTERS, means.tolist(), strict=True)}
