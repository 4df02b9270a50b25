"""Episodes as training data: one row per step, and what each of its tokens weighs in the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import numpy as np
import torch

from atommem.episode import Episode
from atommem.errors import DataError
from atommem.observation import StopReason

NORMALIZATIONS = ("token", "step", "trajectory", "constant")
LOSS_TYPES = {"dapo": "token", "grpo": "step", "dr_grpo": "constant", "cispo": "token"}
"""The losses by TRL's names, each with the normalisation that it has there."""


@dataclass(slots=True, eq=False)
class Row:
    """One step of one episode: what the model saw, what it sampled, and how that is to be changed.

    Attributes:
        prompt_ids, completion_ids: Token ids exactly as they were sampled; kept as parts of `ids`.
        logprobs: The policy's log-probabilities of `completion_ids` when it sampled them (nats), float32.
        episode: Index of the episode in the rank's batch.
        advantage: The episode's.
        weight: What each completion token counts in the loss (`token_weight`).
        old_logprobs: Those of the weights before the first update on the row, where they are not `logprobs`.
        ids: Prompt and completion, int32.
    """

    prompt_ids: Any
    completion_ids: Any
    logprobs: Any
    episode: int
    advantage: float
    weight: float
    old_logprobs: Any = None
    ids: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        parts = [
            np.asarray(part, dtype=np.int32) for part in (self.prompt_ids, self.completion_ids)
        ]
        self.ids = np.concatenate(parts)
        self.prompt_ids, self.completion_ids = np.split(self.ids, [len(parts[0])])
        self.logprobs = np.asarray(self.logprobs, dtype=np.float32)
        self.old_logprobs = self.logprobs if self.old_logprobs is None else self.old_logprobs

    def __len__(self) -> int:
        """Tokens of prompt and completion."""
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The sampled tokens of some rows, one row after the other: (M,) float32 each.

    Attributes:
        counts: Tokens of each row.
        sampled, old: Their log-probabilities when they were sampled, and before the first update on them (nats).
        advantages, weights: Of the row that each belongs to.
    """

    counts: list[int]
    sampled: torch.Tensor
    old: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def of(cls, rows: Sequence[Row], device: torch.device) -> Tokens:
        """Those of `rows`."""
        counts = [len(row.logprobs) for row in rows]
        logprobs = np.concatenate([(row.logprobs, row.old_logprobs) for row in rows], axis=1)
        of_rows = np.repeat([(row.advantage, row.weight) for row in rows], counts, axis=0).T
        return cls(
            counts,
            *torch.from_numpy(np.concatenate([logprobs, of_rows], dtype=np.float32)).to(device),
        )


@dataclass(frozen=True, slots=True)
class EpisodeSize:
    """How much an episode brings to the loss: sampled tokens, and steps with at least one."""

    tokens: int
    steps: int

    @classmethod
    def of(cls, episode: Episode, overlong_filtering: bool = False) -> EpisodeSize:
        """The size of `episode`; one that is not trained on (`is_trained`) has none.

        Raises:
            DataError: Its task says of no answer whether it is right: there is nothing to learn from it. Or its score
                is no number.
        """
        if episode.reward is not None and not isfinite(episode.reward):
            raise DataError(
                f"task {episode.task_id!r} was given the reward {episode.reward}: it has to be a number."
            )
        if episode.reward is None and not episode.failed:
            raise DataError(
                f"task {episode.task_id!r} has no gold answer, so no reward: train on others."
            )
        if not is_trained(episode, overlong_filtering):
            return cls(0, 0)
        lengths = [len(step.token_ids) for step in episode.steps if step.token_ids]
        return cls(sum(lengths), len(lengths))


OVERLONG = (StopReason.TOKEN_LIMIT, StopReason.TIME_LIMIT, StopReason.CONTEXT_OVERFLOW)
"""How episodes end that were cut because they were too long."""


def is_trained(episode: Episode, overlong_filtering: bool) -> bool:
    """Whether `episode` enters the loss: a failed one does not, with overlong filtering (DAPO's, arXiv 2503.14476,
    section 3.4) neither does one that a limit cut short. Its reward still counts in its group's mean.
    """
    return episode.reward is not None and not (
        overlong_filtering and episode.stop_reason in OVERLONG
    )


def normalizer(
    sizes: Sequence[EpisodeSize], normalization: str, max_completion_length: int
) -> float:
    """What the weighted sum of the token losses is divided by.

    Args:
        sizes: Every scored episode of the global batch, those of groups without variance included
            (their rows are skipped because they add 0 to the sum, not because they do not count).
        normalization: ``token``: all completion tokens, so that every token of the batch counts the
            same (DAPO's); ``step``: all steps, so that every step does; ``trajectory``: all episodes (the paper's
            Eq. 9); ``constant``: all steps times `max_completion_length`, so that no length plays a part (Dr. GRPO's,
            arXiv 2503.20783).
        max_completion_length: Most tokens of a step.

    Returns:
        The denominator in the units of `token_weight`; 0 for an empty batch.
    """
    if normalization == "token":
        return float(sum(size.tokens for size in sizes))
    if normalization == "trajectory":
        return float(sum(size.tokens > 0 for size in sizes))
    return float(sum(size.steps for size in sizes)) * (
        max_completion_length if normalization == "constant" else 1
    )


def token_weight(length: int, size: EpisodeSize, normalization: str) -> float:
    """Weight of each of the `length` completion tokens of a step, in an episode of `size`.

    The loss is ``sum(weight * token loss) / normalizer``.
    """
    if normalization in ("token", "constant"):
        return 1.0
    return 1.0 / (length if normalization == "step" else size.tokens)


def episode_rows(
    episodes: Sequence[Episode],
    advantages: Sequence[float | Sequence[float]],
    normalization: str,
    overlong_filtering: bool = False,
    with_kl: bool = False,
) -> list[Row]:
    """One row per step of every episode with an advantage, in order.

    Left out: failed episodes, steps without a single sampled token, and, where the loss has no KL term, steps whose
    advantage is exactly 0, as all of a group with equal rewards are: their policy gradient is 0, so they cost no
    forward or backward pass.

    Args:
        episodes: A rank's episodes.
        advantages: One per episode, or one for each of its steps.
        normalization: Decides the weights.
        overlong_filtering: Leave out episodes that a limit cut short.
        with_kl: The loss has a KL term, to which episodes without an advantage belong as well.
    """
    rows: list[Row] = []
    for index, (episode, advantage) in enumerate(zip(episodes, advantages, strict=True)):
        if not is_trained(episode, overlong_filtering):
            continue
        size = EpisodeSize.of(episode)
        each = advantage if isinstance(advantage, Sequence) else [advantage] * len(episode.steps)
        for step, of in zip(episode.steps, each, strict=True):
            length = len(step.token_ids)
            if length and (of or with_kl):
                weight = token_weight(length, size, normalization)
                rows.append(Row(step.prompt_ids, step.token_ids, step.logprobs, index, of, weight))
    return rows


def merge_equal_rows(rows: Sequence[Row]) -> list[Row]:
    """One row for all that have the same prompt and the same completion.

    The episodes of a group begin with the same prompt, and a policy that has become sure of itself
    completes it the same way. On-policy the ratio is 1 and no clip is active, so the loss is linear in the
    advantage, and these rows add up exactly: the weights are summed, the advantages averaged by
    weight. (A KL term depends on the tokens alone, so it adds up by weight as well.)
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
