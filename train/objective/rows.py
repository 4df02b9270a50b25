"""Episodes as training data: a row per step, advantages, and the weight of tokens in the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from statistics import stdev
from typing import Any

import numpy as np
import torch

from atommem.episode import Episode, StopReason
from atommem.errors import DataError

NORMALIZATIONS = ("token", "step", "trajectory", "constant")
LOSS_TYPES = {"dapo": "token", "grpo": "step", "dr_grpo": "constant", "cispo": "token"}
"""The losses by TRL's names, each with its normalization."""

OVERLONG = (StopReason.TOKEN_LIMIT, StopReason.TIME_LIMIT, StopReason.CONTEXT_OVERFLOW)
"""Stop reasons of episodes that were cut because they were too long."""


@dataclass(slots=True, eq=False)
class Row:
    """One step of one episode, with the token ids as they were sampled."""

    prompt_ids: Any  # int32
    completion_ids: Any
    logprobs: Any  # of completion_ids at sampling (nats), float32
    advantage: float
    weight: float  # of each completion token in the loss (`token_weight`)
    old_logprobs: Any = None  # before the first update on the row; default logprobs

    def __post_init__(self) -> None:
        self.prompt_ids = np.asarray(self.prompt_ids, dtype=np.int32)
        self.completion_ids = np.asarray(self.completion_ids, dtype=np.int32)
        self.logprobs = np.asarray(self.logprobs, dtype=np.float32)
        old = self.logprobs if self.old_logprobs is None else self.old_logprobs
        self.old_logprobs = np.asarray(old, dtype=np.float32)

    @property
    def ids(self) -> np.ndarray:
        return np.concatenate([self.prompt_ids, self.completion_ids])

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The completion tokens of some rows, row after row: (M,) float32 each."""

    counts: list[int]  # tokens of each row
    logprobs: torch.Tensor
    old_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def of(cls, rows: Sequence[Row], device: torch.device) -> Tokens:
        counts = [len(row.logprobs) for row in rows]
        by_token = np.concatenate([(row.logprobs, row.old_logprobs) for row in rows], axis=1)
        by_row = np.repeat([(row.advantage, row.weight) for row in rows], counts, axis=0).T
        columns = np.concatenate([by_token, by_row], dtype=np.float32)
        return cls(counts, *torch.from_numpy(columns).to(device))


@dataclass(frozen=True, slots=True)
class EpisodeSize:
    """Sampled tokens of an episode, and its steps with at least one."""

    tokens: int
    steps: int

    @classmethod
    def of(cls, episode: Episode, overlong_filtering: bool = False) -> EpisodeSize:
        """Return the size of `episode`; 0 if it is not trained on, because it failed.

        With overlong filtering (DAPO, arXiv 2503.14476, section 3.4) those that a limit cut short
        are not trained on either, although their reward counts in the group's mean.
        """
        if episode.reward is not None and not isfinite(episode.reward):
            raise DataError(f"task {episode.task_id!r}: the reward {episode.reward} is not finite.")
        if episode.reward is None and not episode.failed:
            raise DataError(f"task {episode.task_id!r}: no gold answer, so no reward. Remove it.")
        if episode.failed or (overlong_filtering and episode.stop_reason in OVERLONG):
            return cls(0, 0)
        lengths = [len(step.token_ids) for step in episode.steps if step.token_ids]
        return cls(sum(lengths), len(lengths))


def normalizer(
    sizes: Sequence[EpisodeSize], normalization: str, max_completion_length: int
) -> float:
    """Return the denominator of the loss, in units of `token_weight`; 0 for an empty batch.

    ``token``: all completion tokens (DAPO); ``step``: all steps; ``trajectory``: all episodes (the
    paper's Eq. 9); ``constant``: all steps times `max_completion_length` (Dr. GRPO, arXiv
    2503.20783). Groups without variance count: their rows are skipped because they add 0.
    """
    if normalization == "token":
        return float(sum(size.tokens for size in sizes))
    if normalization == "trajectory":
        return float(sum(size.tokens > 0 for size in sizes))
    steps = sum(size.steps for size in sizes)
    return float(steps * (max_completion_length if normalization == "constant" else 1))


def token_weight(length: int, size: EpisodeSize, normalization: str) -> float:
    """Return the weight in the loss of each of the `length` completion tokens of a step."""
    if normalization in ("token", "constant"):
        return 1.0
    return 1.0 / (length if normalization == "step" else size.tokens)


def episode_rows(
    episodes: Sequence[Episode],
    advantages: Sequence[Sequence[float]],
    normalization: str,
    overlong_filtering: bool = False,
    with_kl: bool = False,
) -> list[Row]:
    """Make one row per trained step, in order; `advantages` has, for each episode, one per step.

    Omitted are episodes that are not trained on, steps without a sampled token and, unless the loss
    has a KL term, steps with advantage 0: their gradient is 0.
    """
    rows: list[Row] = []
    for episode, by_step in zip(episodes, advantages, strict=True):
        size = EpisodeSize.of(episode, overlong_filtering)
        for step, advantage in zip(episode.steps, by_step, strict=True):
            if size.tokens and step.token_ids and (advantage or with_kl):
                weight = token_weight(len(step.token_ids), size, normalization)
                ids = step.prompt_ids, step.token_ids
                rows.append(Row(*ids, step.logprobs, advantage, weight))
    return rows


def advantages_of_steps(values: Sequence[float], episodes: Sequence[Episode]) -> list[list[float]]:
    return [[value] * len(one.steps) for value, one in zip(values, episodes, strict=True)]


def merge_equal_rows(rows: Sequence[Row]) -> list[Row]:
    """Merge rows with the same prompt and the same completion.

    On-policy the ratio is 1 and no clip is active, so the loss is linear in the advantage, and the
    KL term depends on the tokens alone: weights are summed, advantages averaged by weight.
    """
    merged: dict[tuple[int, bytes], Row] = {}
    for row in rows:
        key = (len(row.prompt_ids), row.ids.tobytes())
        if known := merged.get(key):
            weight = known.weight + row.weight
            advantage = (known.advantage * known.weight + row.advantage * row.weight) / weight
            row = replace(known, weight=weight, advantage=advantage)
        merged[key] = row
    return list(merged.values())


EPSILON = 1e-4  # added to a standard deviation before dividing by it, as in TRL
QUARTERS = ("q1", "q2", "q3", "q4")


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
    """Return the sum of `values` in each quarter of the episodes (or rows), by size.

    Those of one size have their mean value each, because a quarter may end among them.
    """
    _, level = np.unique(sizes, return_inverse=True)
    means = np.bincount(level, values) / np.bincount(level)
    sums = np.append(0.0, np.cumsum(means[np.sort(level)]))
    ends = np.linspace(0, len(values), len(QUARTERS) + 1)
    return np.diff(np.interp(ends, np.arange(len(sums)), sums))


def signal_report(history: Sequence[Mapping[str, Any]]) -> str:
    """Describe what the updates of a log learned from; "" without an update on groups."""
    if not (updates := [entry for entry in history if "frac_reward_zero_std" in entry]):
        return ""
    if not (trained := [entry for entry in updates if "gradient_share/above_mean" in entry]):
        return (
            f"Nothing was learned from rewards: in none of the {len(updates)} log entries did the "
            "episodes of a group differ in reward. Start with a cold start or easier tasks, or "
            "give more num_generations or a higher temperature."
        )
    lines = [f"{len(trained)} of {len(updates)} log entries had a group with different rewards."]
    for key, text in (
        ("gradient_share/steps", "Gradient weight by quarter of the episodes, fewest steps first"),
        ("gradient_share/tokens", "Gradient weight by quarter, fewest completion tokens first"),
        ("above_mean/steps", "Episodes above their group's mean, fewest steps first"),
    ):
        means = [np.mean([entry[f"{key}_{q}"] for entry in trained]) for q in QUARTERS]
        lines.append(f"{text}: {' '.join(f'{mean:.2f}' for mean in means)}.")
    return "\n".join(lines)
