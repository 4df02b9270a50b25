"""Correction for a sampler whose probabilities are not quite the trainer's."""

from __future__ import annotations

import torch


def importance_ratio(
    trained: torch.Tensor,
    sampled: torch.Tensor,
    mask: torch.Tensor,
    mode: str,
    clip_min: float | None,
    clip_max: float | None,
) -> torch.Tensor:
    """What TRL multiplies the token losses by: pi_trainer / pi_sampler, truncated or masked.

    Two engines compute slightly different probabilities from the same weights; without a correction the
    policy gradient is biased. The modes are those of TRL's ``vllm_importance_sampling_mode``.

    Args:
        trained: (rows, tokens) log-probabilities of the trainer before its update (nats).
        sampled: (rows, tokens) log-probabilities of the engine that sampled.
        mask: (rows, tokens) true where a token was sampled.
        mode: ``token_truncate``, ``token_mask``, ``sequence_truncate`` or ``sequence_mask``. A sequence is
            the completion of one step.
        clip_min: Lowest ratio; None is no bound.
        clip_max: Highest ratio; None is no bound.

    Returns:
        (rows, tokens), or (rows, 1) for the sequence modes. ``truncate`` clamps to the bounds, ``mask``
        sets what lies outside to 0.
    """
    difference = (trained - sampled) * mask
    if mode.startswith("sequence"):
        difference = difference.sum(dim=-1, keepdim=True)
    ratio = torch.exp(difference)
    if mode.endswith("truncate"):
        return ratio if clip_min is None and clip_max is None else ratio.clamp(min=clip_min, max=clip_max)
    outside = torch.zeros_like(ratio, dtype=torch.bool)
    if clip_min is not None:
        outside |= ratio < clip_min
    if clip_max is not None:
        outside |= ratio > clip_max
    return ratio.masked_fill(outside, 0.0)
