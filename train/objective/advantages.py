"""Group-relative advantages."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import stdev

EPSILON = 1e-4
"""Added to a standard deviation before dividing by it, as in TRL."""


def group_advantages(
    rewards: Sequence[float | None], group_size: int, scale_rewards: str = "none"
) -> list[float]:
    """Return each episode's reward minus the mean reward of its group.

    DeepSeekMath's outcome supervision; AtomMem (arXiv 2601.08323) and Dr. GRPO do not divide by the
    standard deviation.

    Args:
        rewards: One per episode, group after group; None for a failed episode, which counts in no
            mean and gets advantage 0.
        group_size: Divides ``len(rewards)``.
        scale_rewards: ``none``; ``group``: divide by the group's standard deviation (n - 1);
            ``batch``: by that of all rewards.

    Returns:
        One advantage per episode; 0 in groups without variance (`has_variance`).
    """
    advantages: list[float] = []
    batch = [reward for reward in rewards if reward is not None]
    for start in range(0, len(rewards), group_size):
        group = rewards[start : start + group_size]
        scored = [reward for reward in group if reward is not None]
        if not has_variance(group):
            advantages += [0.0] * len(group)
            continue
        mean, scale = sum(scored) / len(scored), 1.0
        if scale_rewards != "none":
            scale = stdev(scored if scale_rewards == "group" else batch) + EPSILON
        advantages += [0.0 if reward is None else (reward - mean) / scale for reward in group]
    return advantages


def has_variance(group: Sequence[float | None]) -> bool:
    """Return whether the scored rewards of `group` differ, so that it carries a learning signal."""
    return len({reward for reward in group if reward is not None}) > 1
