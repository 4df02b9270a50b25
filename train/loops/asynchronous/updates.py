"""Ended groups -> the samples and the normaliser of one update. The arithmetic is that of on-policy training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from atommem.episode import Episode
from atommem.train.objective.advantages import group_advantages
from atommem.train.objective.sequences import EpisodeSize, Row, episode_rows, longest, normalizer


@dataclass(frozen=True, slots=True)
class Sample:
    """A step, as it travels to the process that trains on it.

    Attributes:
        input_ids: Prompt and completion, int32.
        logprobs: Log-probabilities of the completion's tokens when they were sampled, float32.
        advantage: With the token weight of the loss's normalisation in it.
        group_id: The group's index.
        model_version: Version of the weights that sampled it.
    """

    input_ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    advantage: float
    group_id: int
    model_version: int

    def __len__(self) -> int:
        """Tokens of prompt and completion."""
        return len(self.input_ids)

    def tree_input(self) -> dict[str, Any]:
        """What TRL's `TreeRow` adds: arrays of one length, zeros over the prompt."""
        prompt = np.zeros(len(self.input_ids) - len(self.logprobs), dtype=np.float32)
        return {
            "input_ids": self.input_ids,
            "completion_mask": np.concatenate([prompt, np.ones_like(self.logprobs)]).astype(np.int64),
            "old_log_probs": np.concatenate([prompt, self.logprobs]),
            "advantage": self.advantage,
            "group_id": self.group_id,
            "metrics": {},
        }


@dataclass(frozen=True)
class Group:
    """The episodes of one task, all ended.

    Attributes:
        index: Its number in the run (`atommem.train.loops.asynchronous.order.TaskOrder`).
        episodes: With their rewards; a failed one has none.
        versions: For each episode, the version of the weights that each of its steps was sampled from. A step
            that weights were replaced during has the older one.
        started: The version when the group began.
    """

    index: int
    episodes: Sequence[Episode]
    versions: Sequence[Sequence[int]]
    started: int

    @property
    def oldest(self) -> int:
        """The oldest version in the group: it decides whether the group is stale."""
        return min(chain.from_iterable(self.versions), default=self.started)


@dataclass(frozen=True)
class Update:
    """What one update trains on.

    Attributes:
        samples: One per step of the groups with variance.
        normalizer: What the sum of the token losses is divided by; groups without variance count in it.
    """

    samples: list[Sample]
    normalizer: float


def make_update(
    groups: Sequence[Group], scale_rewards: str, normalization: str, overlong_filtering: bool = False
) -> Update:
    """Advantages over each whole group, one sample per step, and the loss normaliser of all groups together.

    The token weights of `normalization` are put into the advantages: the clipped loss is linear in a
    positive factor.

    Args:
        groups: The groups of one update, each of the same number of episodes.
        scale_rewards: As in `atommem.train.objective.advantages.group_advantages`.
        normalization: As in `atommem.train.objective.sequences.normalizer`.
        overlong_filtering: Leave out episodes that a limit cut short.
    """
    size = len(groups[0].episodes)
    episodes = [episode for group in groups for episode in group.episodes]
    versions = [steps for group in groups for steps in group.versions]
    advantages = group_advantages([episode.reward for episode in episodes], size, scale_rewards)
    sizes = [EpisodeSize.of(episode, overlong_filtering) for episode in episodes]
    samples: list[Sample] = []
    rows = episode_rows(episodes, advantages, normalization, longest(sizes), overlong_filtering)
    for row, version in _versioned(rows, episodes, versions):
        samples.append(_sample(row, groups[row.episode // size].index, version))
    return Update(samples, normalizer(sizes, normalization))


def _versioned(
    rows: Sequence[Row], episodes: Sequence[Episode], versions: Sequence[Sequence[int]]
) -> list[tuple[Row, int]]:
    """Each row with the version of its step; `episode_rows` leaves out steps without a token.

    An episode that its time limit ended may have a completion more than steps.
    """
    steps = {
        index: iter([v for step, v in zip(episodes[index].steps, versions[index], strict=False) if step.token_ids])
        for index in {row.episode for row in rows}
    }
    return [(row, next(steps[row.episode])) for row in rows]


def _sample(row: Row, group_index: int, version: int) -> Sample:
    return Sample(
        input_ids=np.array(row.prompt_ids + row.completion_ids, dtype=np.int32),
        logprobs=np.array(row.logprobs, dtype=np.float32),
        advantage=row.advantage * row.weight,
        group_id=group_index,
        model_version=version,
    )
