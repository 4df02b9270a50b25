"""Groups that have ended, and what an update trains on of them. The arithmetic is that of on-policy training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atommem.episode import Episode
from atommem.train.episode_config import EpisodeConfig
from atommem.train.loops.update_step import Batch
from atommem.train.objective.advantages import group_advantages
from atommem.train.objective.sequences import EpisodeSize


@dataclass(frozen=True)
class Group:
    """The episodes of one task, all ended.

    Attributes:
        index: Its number in the run (`atommem.train.rollout.task_order.TaskOrder`).
        episodes: With their rewards; a failed one has none.
        versions: For each episode, the version of the weights that each of its steps was sampled from. A step
            that weights were replaced during has the older one.
    """

    index: int
    episodes: Sequence[Episode]
    versions: Sequence[Sequence[int]]


def batch_of(groups: Sequence[Group], args: EpisodeConfig) -> Batch:
    """One row per step of the groups with variance; those without count in the normaliser.

    Args:
        groups: The groups of one update, each of the same number of episodes.
        args: Settings of the run.
    """
    episodes = [episode for group in groups for episode in group.episodes]
    rewards = [episode.reward for episode in episodes]
    advantages = group_advantages(rewards, len(groups[0].episodes), str(args.scale_rewards))
    sizes = [EpisodeSize.of(episode, args.overlong_filtering) for episode in episodes]
    return Batch.of(args, episodes, advantages, sizes)
