"""Episodes as training data: one row per step, and the weight of its tokens in the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from math import isfinite
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

    prompt_ids: Any
    completion_ids: Any
    logprobs: Any  # of completion_ids at sampling (nats), float32
    episode: int  # index in the rank's batch
    advantage: float
    weight: float  # of each completion token in the loss (`token_weight`)
    old_logprobs: Any = None  # before the first update on the row; default logprobs
    ids: np.ndarray = field(init=False, repr=False)  # prompt and completion, int32

    def __post_init__(self) -> None:
        prompt, completion = (
            np.asarray(ids, dtype=np.int32) for ids in (self.prompt_ids, self.completion_ids)
        )
        self.ids = np.concatenate([prompt, completion])
        self.prompt_ids, self.completion_ids = np.split(self.ids, [len(prompt)])
        self.logprobs = np.asarray(self.logprobs, dtype=np.float32)
        old = self.logprobs if self.old_logprobs is None else self.old_logprobs
        self.old_logprobs = np.asarray(old, dtype=np.float32)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the ids once, not as `ids` and its two parts."""
        return Row, tuple(getattr(self, item.name) for item in fields(self) if item.init)

    def __len__(self) -> int:
        return len(self.ids)


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
        """Return the size of `episode`; 0 if it is not trained on (`is_trained`)."""
        if episode.reward is not None and not isfinite(episode.reward):
            raise DataError(f"task {episode.task_id!r}: the reward {episode.reward} is not finite.")
        if episode.reward is None and not episode.failed:
            raise DataError(f"task {episode.task_id!r}: no gold answer, so no reward. Remove it.")
        if not is_trained(episode, overlong_filtering):
            return cls(0, 0)
        lengths = [len(step.token_ids) for step in episode.steps if step.token_ids]
        return cls(sum(lengths), len(lengths))


def is_trained(episode: Episode, overlong_filtering: bool) -> bool:
    """Return whether `episode` enters the loss.

    Failed episodes do not; with overlong filtering (DAPO, arXiv 2503.14476, section 3.4) neither do
    those that a limit cut short, although their reward counts in the group's mean.
    """
    return episode.reward is not None and not (
        overlong_filtering and episode.stop_reason in OVERLONG
    )


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
    """Return the weight of each of the `length` completion tokens of a step.

    The loss is ``sum(weight * token loss) / normalizer``.
    """
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
    for index, (episode, by_step) in enumerate(zip(episodes, advantages, strict=True)):
        if not is_trained(episode, overlong_filtering):
            continue
        size = EpisodeSize.of(episode)
        for step, advantage in zip(episode.steps, by_step, strict=True):
            length = len(step.token_ids)
            if not length or not (advantage or with_kl):
                continue
            if not step.prompt_ids:
                raise ValueError(
                    f"step {step.index} of task {episode.task_id!r} has no prompt ids: run "
                    "training episodes with an agent that has keep_prompts=True."
                )
            weight = token_weight(length, size, normalization)
            rows.append(
                Row(step.prompt_ids, step.token_ids, step.logprobs, index, advantage, weight)
            )
    return rows


def advantages_of_steps(
    advantages: Sequence[float], episodes: Sequence[Episode]
) -> list[list[float]]:
    pairs = zip(advantages, episodes, strict=True)
    return [[advantage] * len(episode.steps) for advantage, episode in pairs]


def merge_equal_rows(rows: Sequence[Row]) -> list[Row]:
    """Merge rows with the same prompt and the same completion.

    On-policy the ratio is 1 and no clip is active, so the loss is linear in the advantage and such
    rows add up exactly: weights are summed, advantages averaged by weight. The KL term depends on
    the tokens alone, so it adds up by weight too.
    """
    merged: dict[tuple[int, bytes], Row] = {}
    for row in rows:
        key = (len(row.prompt_ids), row.ids.tobytes())
        known = merged.get(key)
        if known is None:
            merged[key] = row
            continue
        weight = known.weight + row.weight
        advantage = (known.advantage * known.weight + row.advantage * row.weight) / weight
        merged[key] = replace(known, weight=weight, advantage=advantage)
    return list(merged.values())
