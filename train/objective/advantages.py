"""Group-relative advantages, and whose gradient they make an update."""

from collections.abc import Mapping, Sequence
from statistics import stdev
from typing import Any

import numpy as np

from atommem.train.objective.rows import EpisodeSize

EPSILON = 1e-4  # added to a standard deviation before dividing by it, as in TRL
QUARTERS = ("q1", "q2", "q3", "q4")
_FLAT = "frac_reward_zero_std"


def group_advantages(
    rewards: Sequence[float | None], group_size: int, scale_rewards: str = "none"
) -> list[float]:
    """Return each episode's reward minus the mean reward of its group; 0 without variance.

    DeepSeekMath's outcome supervision; AtomMem (arXiv 2601.08323) and Dr. GRPO do not divide by the
    standard deviation.

    Args:
        rewards: One per episode, group after group; None for a failed episode, which counts in no
            mean and gets advantage 0.
        scale_rewards: ``none``; ``group``: divide by the group's standard deviation (n - 1);
            ``batch``: by that of all rewards.
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


def gradient_shares(
    sizes: Sequence[EpisodeSize], advantages: Sequence[float], normalization: str
) -> dict[str, float]:
    """Return the shares of an update's gradient weight; {} without any.

    The weight of an episode is its advantage, without sign, times the weight of its tokens in the
    loss (`token_weight`). Of the trained episodes, the smallest first, each quarter has
    ``gradient_share/steps_q1`` to ``q4`` and ``gradient_share/tokens_q1`` to ``q4``: .25 each if
    size does not matter. ``gradient_share/above_mean`` is that of episodes with a reward above
    their group's mean, and ``above_mean/steps_q1`` to ``q4`` their fraction in each quarter.
    """
    trained = [(s, a) for s, a in zip(sizes, advantages, strict=True) if s.tokens]
    steps, tokens = (np.array([getattr(s, n) for s, _ in trained]) for n in ("steps", "tokens"))
    advantage = np.array([a for _, a in trained])
    by_size = {"step": steps, "trajectory": np.ones(len(trained))}.get(normalization, tokens)
    weight = np.abs(advantage) * by_size
    if not weight.sum():
        return {}
    share, above = weight / weight.sum(), advantage > 0
    log = {"gradient_share/above_mean": float(share[above].sum())}
    for name, values, size in (
        ("gradient_share/steps", share, steps),
        ("gradient_share/tokens", share, tokens),
        ("above_mean/steps", above * 4 / len(above), steps),
    ):
        parts = zip(QUARTERS, sums_of_quarters(values, size), strict=True)
        log |= {f"{name}_{quarter}": float(value) for quarter, value in parts}
    return log


def sums_of_quarters(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the sum of `values` in each quarter of the episodes, by size.

    Episodes of one size have their mean value each, because a quarter may end among them.
    """
    _, level = np.unique(sizes, return_inverse=True)
    means = np.bincount(level, values) / np.bincount(level)
    sums = np.append(0.0, np.cumsum(means[np.sort(level)]))
    ends = np.linspace(0, len(values), len(QUARTERS) + 1)
    return np.diff(np.interp(ends, np.arange(len(sums)), sums))


def signal_report(history: Sequence[Mapping[str, Any]]) -> str:
    """Describe what the updates of a log learned from; "" without an update on groups."""
    updates = [entry for entry in history if _FLAT in entry]
    if not updates:
        return ""
    trained = [entry for entry in updates if "gradient_share/above_mean" in entry]
    if not trained:
        return (
            f"Nothing was learned from rewards: in none of the {len(updates)} updates did the "
            "episodes of a group differ in reward. Start with a cold start or easier tasks, or "
            "give more num_generations or a higher temperature."
        )
    lines = [f"{len(trained)} of {len(updates)} updates had a group with different rewards."]
    for key, text in (
        ("gradient_share/steps", "Gradient weight by quarter of the episodes, fewest steps first"),
        ("gradient_share/tokens", "Gradient weight by quarter, fewest completion tokens first"),
        ("above_mean/steps", "Episodes above their group's mean, fewest steps first"),
    ):
        means = [np.mean([entry[f"{key}_{q}"] for entry in trained]) for q in QUARTERS]
        lines.append(f"{text}: {' '.join(f'{mean:.2f}' for mean in means)}.")
    return "\n".join(lines)
