"""Group-relative advantages, and the rewards that they compare."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import stdev

from atommem.episode import Episode
from atommem.memory.log import replay

EPSILON = 1e-4
"""Added to a standard deviation before dividing by it, as in TRL."""

CREDIT = ("trajectory", "steps")


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


def state_advantages(
    episodes: Sequence[Episode], rewards: Sequence[float | None]
) -> list[list[float]]:
    """Return, for each step of one group, its episode's reward minus the mean of its state.

    The step part of GiGPO (arXiv 2505.10978, eq. 7 undiscounted, not divided by the standard
    deviation). A state is a prompt: everything the policy knows. A state that only one episode
    reached gets 0.

    Args:
        episodes: All of the group.
        rewards: One per episode; None if it failed.
    """
    by_state: dict[tuple[int, ...], list[float]] = defaultdict(list)
    states = [[tuple(step.prompt_ids) for step in episode.steps] for episode in episodes]
    for visited, reward in zip(states, rewards, strict=True):
        for state in visited if reward is not None else ():
            by_state[state].append(reward or 0.0)
    means = {state: sum(found) / len(found) for state, found in by_state.items()}
    return [
        [
            0.0 if reward is None or len(by_state[state]) < 2 else reward - means[state]
            for state in visited
        ]
        for visited, reward in zip(states, rewards, strict=True)
    ]


def compression_reward(episode: Episode, weight: float) -> float | None:
    """Return the reward plus `weight` times the fraction of the text read that is not in the store.

    As Mem-alpha (arXiv 2509.25911) and Memory-R2 (2605.21768) reward a small memory. Both lengths
    are in characters: of the entries at the end, and of the stream. None for a failed episode.
    """
    if episode.reward is None or not weight:
        return episode.reward
    pieces = [piece for step in episode.steps for piece in step.observation.stream]
    read = sum(len(text) for piece in pieces for _, text in piece.walk() if isinstance(text, str))
    contents = replay(operation for step in episode.steps for operation in step.operations)
    stored = sum(len(entry.text) for entry in contents.entries.values())
    return episode.reward + weight * (1 - min(stored / read, 1.0) if read else 0.0)
