"""The objective: what an update minimises over its sampled tokens. Pure functions; settings have TRL's names.

GRPO (arXiv 2402.03300) as AtomMem (arXiv 2601.08323) uses it, and the field's variants by name. With A the advantage
and w the weight of a token (`atommem.train.objective.sequences`), summed over the sampled tokens of all processes::

    loss       = sum(w * (correction * surrogate + beta * kl)) / normalizer
    surrogate  = -min(r * A, clip(r, 1 - epsilon, 1 + epsilon_high) * A)    r = pi / pi_old: dapo, grpo, dr_grpo
               = -min(r, epsilon_high) * A * log pi                         the factor without a gradient: cispo
    kl         = exp(ref - logp) - (ref - logp) - 1                         k3; times r: use_bias_correction_kl
    correction = pi_old / pi_sampler, truncated or masked                   where another engine sampled

With `importance_sampling_level` sequence (GSPO, arXiv 2507.18071), r is the geometric mean of the ratios of a row's
tokens: a row is one step, sampled from a prompt of its own. (Over an episode it would tie rows of different
micro-batches together.) On-policy, pi_old is pi itself: r is 1, and its gradient that of log pi.
`tests/train/objective/test_loss.py` holds values, gradients and logged means of each to TRL's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from atommem.train.objective.sequences import Tokens

MASKED = "sampling/masked_fraction"
"""Logged: share of tokens whose correction is masked or truncated, or below a hundredth: as good as masked."""


@dataclass(frozen=True, slots=True)
class Objective:
    """The loss with its settings; ``vllm_importance_sampling_mode`` None is without a correction."""

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

    @classmethod
    def of(cls, args: Any) -> Objective:
        """That of a training configuration."""
        given = {
            field.name: getattr(args, field.name)
            for field in fields(cls)
            if hasattr(args, field.name)
        }
        if not (args.use_vllm and getattr(args, "vllm_importance_sampling_correction", False)):
            given["vllm_importance_sampling_mode"] = None
        return cls(
            **given
            | {"epsilon_high": args.epsilon if args.epsilon_high is None else args.epsilon_high}
        )

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
        difference = logps - old
        if self.importance_sampling_level == "sequence":
            difference = by_row(torch.mean, difference, tokens.counts)
        ratio = torch.exp(difference)
        if self.loss_type == "cispo":
            losses = -ratio.detach().clamp(max=self.epsilon_high) * advantages * logps
            log = {"cispo_clip_ratio": (ratio > self.epsilon_high) & (advantages > 0)}
        else:
            least, most = 1 - self.epsilon, 1 + self.epsilon_high
            # Two-sided, where `delta` is set: else the ratio has no bound where the advantage is negative.
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
            difference = old - tokens.sampled
            factor, log[MASKED] = correction(
                difference, tokens.counts, self.vllm_importance_sampling_mode, *bounds
            )
            losses = losses * factor
        if ref_logps is not None:
            log["kl"] = torch.exp(ref_logps - logps) - (ref_logps - logps) - 1
            log["kl"] = log["kl"] * (ratio if self.use_bias_correction_kl else 1.0)
            losses = losses + self.beta * log["kl"]
        return (tokens.weights * losses).sum(), {
            name: value.detach() for name, value in log.items()
        }


def correction(
    difference: torch.Tensor,
    counts: Sequence[int],
    mode: str,
    clip_min: float | None,
    clip_max: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """pi_old / pi_sampler of each token, bounded, as two engines compute slightly different numbers; and `MASKED`.

    Args:
        difference: (M,) log pi_old - log pi_sampler.
        counts: Tokens of each row.
        mode: ``token_...`` is a ratio for each token, ``sequence_...`` one for each row (the product of its tokens');
            ``..._truncate`` clamps it to the bounds, ``..._mask`` sets what lies outside to 0.
        clip_min, clip_max: The bounds; None is none.
    """
    ratio = torch.exp(
        by_row(torch.sum, difference, counts) if mode.startswith("sequence") else difference
    )
    bounded = ratio if clip_min is None and clip_max is None else ratio.clamp(clip_min, clip_max)
    outside = bounded != ratio
    return (bounded if mode.endswith("truncate") else ratio.masked_fill(outside, 0.0)), outside | (
        ratio < 0.01
    )


def by_row(
    reduce: Callable[[torch.Tensor], torch.Tensor], values: torch.Tensor, counts: Sequence[int]
) -> torch.Tensor:
    """`reduce` of each row's values, at each of its tokens."""
    return torch.cat([reduce(row).expand(len(row)) for row in values.split(list(counts))])
