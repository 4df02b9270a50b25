"""Group-relative advantages: what GRPO puts in the place of a critic."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import stdev

EPSILON = 1e-4
"""Added to a standard deviation before dividing by it, as TRL does."""


def group_advantages(
    rewards: Sequence[float | None], group_size: int, scale_rewards: str = "none"
) -> list[float]:
    """Advantage of every episode: its reward minus the mean reward of its group.

    DeepSeekMath's eq. for outcome supervision without the division by the standard deviation, which
    AtomMem (arXiv 2601.08323) and Dr. GRPO leave out; the option is there.

    Args:
        rewards: One per episode, groups one after the other; None for an episode that failed for a
            reason outside the policy. It counts in no mean and gets advantage 0.
        group_size: Episodes in a group; divides ``len(rewards)``.
        scale_rewards: ``none``; ``group``: divide by the group's standard deviation (n - 1); ``batch``:
            by that of all rewards.

    Returns:
        One advantage per episode. Exactly 0.0 throughout a group whose rewards are all equal, or of
        which fewer than two episodes were scored: there is nothing to compare.
    """
    advantages: list[float] = []
    everything = [reward for reward in rewards if reward is not None]
    for start in range(0, len(rewards), group_size):
        group = rewards[start : start + group_size]
        scored = [reward for reward in group if reward is not None]
        if not has_variance(group):
            advantages += [0.0] * len(group)
            continue
        mean = sum(scored) / len(scored)
        compared = {"group": scored, "batch": everything}
        scale = 1.0 if scale_rewards == "none" else stdev(compared[scale_rewards]) + EPSILON
        advantages += [0.0 if reward is None else (reward - mean) / scale for reward in group]
    return advantages


def has_variance(group: Sequence[float | None]) -> bool:
    """Whether the scored rewards of `group` differ. Only then does it carry a learning signal."""
    return len({reward for reward in group if reward is not None}) > 1


def zero_variance_fraction(rewards: Sequence[float | None], group_size: int) -> float:
    """Share of the groups that teach nothing (`has_variance`)."""
    starts = range(0, len(rewards), group_size)
    return sum(not has_variance(rewards[start : start + group_size]) for start in starts) / max(
        len(starts), 1
    )
