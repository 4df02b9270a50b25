"""The objective: what an update minimises over its sampled tokens. Pure functions; settings have TRL's names.

GRPO (arXiv 2402.03300) as AtomMem (arXiv 2601.08323) uses it. With A the advantage and w the weight of a token
(`atommem.train.objective.sequences`), summed over the sampled tokens of all processes::

    loss       = sum(w * (correction * surrogate + beta * kl)) / normalizer
    surrogate  = -min(r * A, clip(r, 1 - epsilon, 1 + epsilon_high) * A)       r = pi / pi_old
    kl         = exp(ref - logp) - (ref - logp) - 1                            k3; times r: use_bias_correction_kl
    correction = pi_old / pi_sampler, truncated or masked                      where another engine sampled

On-policy, pi_old is pi itself: r is 1, and its gradient that of log pi. `tests/train/objective/test_loss.py` holds
values, gradients and logged means to TRL's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from atommem.train.objective.sequences import Row


@dataclass(frozen=True, slots=True)
class Tokens:
    """The sampled tokens of some rows, one row after the other: (M,) float32 each.

    Attributes:
        counts: Tokens of each row.
        sampled: Their log-probabilities when they were sampled (nats).
        advantages, weights: Of the row that each belongs to.
    """

    counts: list[int]
    sampled: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def of(cls, rows: Sequence[Row], device: torch.device) -> Tokens:
        """Those of `rows`."""
        counts = [len(row.logprobs) for row in rows]
        of_rows = np.repeat([(row.advantage, row.weight) for row in rows], counts, axis=0).T
        table = np.stack([np.concatenate([row.logprobs for row in rows]), *of_rows]).astype(np.float32)
        return cls(counts, *torch.from_numpy(table).to(device))


@dataclass(frozen=True, slots=True)
class Objective:
    """The loss with its settings; `mode` is TRL's ``vllm_importance_sampling_mode``, None without a correction."""

    epsilon: float
    epsilon_high: float
    delta: float | None = None
    beta: float = 0.0
    use_bias_correction_kl: bool = True
    mode: str | None = None
    clip_min: float | None = None
    clip_max: float | None = None

    def __call__(
        self,
        logps: torch.Tensor,
        tokens: Tokens,
        old_logps: torch.Tensor | None = None,
        ref_logps: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The weighted sum of the token losses, and each token's value of what is logged.

        Args:
            logps: (M,) log-probabilities of the policy in training (nats).
            tokens: What was sampled.
            old_logps: (M,) those before the update; unset is on-policy.
            ref_logps: (M,) those of the reference model, where `beta` is not 0.
        """
        advantages, old = tokens.advantages, logps.detach() if old_logps is None else old_logps
        ratio = torch.exp(logps - old)
        losses = surrogate(ratio, advantages, self.epsilon, self.epsilon_high, self.delta)
        if self.mode is not None:
            losses = losses * correction(old - tokens.sampled, tokens.counts, self.mode, self.clip_min, self.clip_max)
        low, high = (ratio < 1 - self.epsilon) & (advantages < 0), (ratio > 1 + self.epsilon_high) & (advantages > 0)
        log = {"ratio": ratio, "clip_ratio/low_mean": low, "clip_ratio/high_mean": high}
        log["clip_ratio/region_mean"] = low | high
        if ref_logps is not None:
            log["kl"] = k3(logps, ref_logps) * (ratio if self.use_bias_correction_kl else 1.0)
            losses = losses + self.beta * log["kl"]
        return (tokens.weights * losses).sum(), {name: value.detach() for name, value in log.items()}


def surrogate(
    ratio: torch.Tensor, advantages: torch.Tensor, epsilon: float, epsilon_high: float, delta: float | None = None
) -> torch.Tensor:
    """PPO's clipped loss of each token; `delta` bounds the ratio where the advantage is negative, too."""
    clipped = ratio.clamp(1 - epsilon, 1 + epsilon_high)
    bounded = ratio if delta is None else ratio.clamp(max=delta)
    return -torch.min(bounded * advantages, clipped * advantages)


def k3(logps: torch.Tensor, ref_logps: torch.Tensor) -> torch.Tensor:
    """Schulman's estimate of KL(pi || ref) from a sample of pi: never negative, little variance."""
    return torch.exp(ref_logps - logps) - (ref_logps - logps) - 1


def correction(
    difference: torch.Tensor, counts: Sequence[int], mode: str, clip_min: float | None, clip_max: float | None
) -> torch.Tensor:
    """pi_old / pi_sampler: two engines compute slightly different probabilities from the same weights.

    Args:
        difference: (M,) log pi_old - log pi_sampler.
        counts: Tokens of each row.
        mode: ``token_...`` is a ratio for each token, ``sequence_...`` one for each row; ``..._truncate`` clamps it
            to the bounds, ``..._mask`` sets what lies outside to 0.
        clip_min, clip_max: The bounds; None is none.
    """
    if mode.startswith("sequence"):
        difference = torch.cat([row.sum().expand(len(row)) for row in difference.split(list(counts))])
    ratio = torch.exp(difference)
    bounded = ratio if clip_min is None and clip_max is None else ratio.clamp(clip_min, clip_max)
    return bounded if mode.endswith("truncate") else ratio.masked_fill(bounded != ratio, 0.0)
