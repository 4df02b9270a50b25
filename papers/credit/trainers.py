"""The trainers of the arms; each changes what a rollout's steps are credited with. For one process.

`StepCredit` adds the step part of GiGPO (arXiv 2505.10978, eq. 7, undiscounted), `Rerolls` the
local rerolls of Memory-R2 (arXiv 2605.21768), `CompressionReward` a reward for a small memory as in
Mem-alpha (arXiv 2509.25911).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from atommem.episode import Episode
from atommem.memory.log import replay
from atommem.rollout import run_jobs
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from atommem.train.objective.advantages import group_advantages, has_variance
from atommem.train.objective.rows import EpisodeSize

Collected = tuple[list[Episode], list[list[float]], list[EpisodeSize]]


class StepCredit(MemoryGRPOTrainer):
    """Adds each step's comparison with the steps of its group at the same prompt."""

    def collect(self, rollout: int) -> Collected:
        """As `MemoryGRPOTrainer.collect`."""
        episodes, advantages, sizes = super().collect(rollout)
        size = self.args.num_generations or 1
        by_state = [
            steps
            for start in range(0, len(episodes), size)
            for steps in state_advantages(episodes[start : start + size])
        ]
        summed = [
            [whole + part for whole, part in zip(*steps, strict=True)]
            for steps in zip(advantages, by_state, strict=True)
        ]
        return episodes, summed, sizes


def state_advantages(group: Sequence[Episode]) -> list[list[float]]:
    """Return, for each step of a group, its episode's reward minus the mean of its state.

    A state is a prompt: everything the policy knows. One that only one episode reached gets 0.
    """
    rewards: dict[tuple[int, ...], list[float]] = defaultdict(list)
    for episode in group:
        for step in episode.steps if episode.reward is not None else ():
            rewards[tuple(step.prompt_ids)].append(episode.reward or 0.0)

    def advantage(episode: Episode, prompt: tuple[int, ...]) -> float:
        found = rewards[prompt]
        if episode.reward is None or len(found) < 2:
            return 0.0
        return episode.reward - sum(found) / len(found)

    return [[advantage(e, tuple(step.prompt_ids)) for step in e.steps] for e in group]


class CompressionReward(MemoryGRPOTrainer):
    """Rewards episodes whose store is small beside the text that they read."""

    weight = 0.1

    def collect(self, rollout: int) -> Collected:
        """As `MemoryGRPOTrainer.collect`."""
        episodes, _, sizes = super().collect(rollout)
        rewards = [compression_reward(episode, self.weight) for episode in episodes]
        by_episode = group_advantages(rewards, self.args.num_generations or 1)
        steps = zip(episodes, by_episode, strict=True)
        return episodes, [[advantage] * len(e.steps) for e, advantage in steps], sizes


def compression_reward(episode: Episode, weight: float) -> float | None:
    """Return the reward plus `weight` times the fraction of the text read that is not in the store.

    Both lengths are in characters: of the entries at the end, and of the stream.
    """
    if episode.reward is None:
        return None
    pieces = [piece for step in episode.steps for piece in step.observation.stream]
    read = sum(len(text) for piece in pieces for _, text in piece.walk() if isinstance(text, str))
    contents = replay(operation for step in episode.steps for operation in step.operations)
    stored = sum(len(entry.text) for entry in contents.entries.values())
    return episode.reward + weight * (1 - min(stored / read, 1.0) if read else 0.0)


class Rerolls(MemoryGRPOTrainer):
    """Continues one episode of each group several times from a random step of it.

    Episodes of a group soon have different memories, so their rewards compare more than one
    decision. Branches of one step share its memory, and are compared with each other.
    """

    branches = 4

    def collect(self, rollout: int) -> Collected:
        """As `MemoryGRPOTrainer.collect`, with the steps after each branch point."""
        episodes, advantages, sizes = super().collect(rollout)
        size, runner = self.args.num_generations or 1, self.rollout_runner(rollout)
        tasks = {task.id: task for task in self.tasks}
        points: list[tuple[Episode, int]] = []
        for start in range(0, len(episodes), size):
            group = [e for e in episodes[start : start + size] if not e.failed and len(e.steps) > 1]
            if group:
                seed = f"{self.args.seed}/{self.state.global_step}/{group[0].task_id}"
                rng = random.Random(seed)
                episode = rng.choice(group)
                points.append((episode, rng.randrange(1, len(episode.steps))))

        async def branch(point: tuple[Episode, int], sample: int) -> Episode:
            episode, begin = point
            return await runner.run(tasks[episode.task_id], sample, past=episode.steps[:begin])

        jobs = [(point, size + index) for point in points for index in range(self.branches)]
        ended: list[Any] = self.run_rollout(
            lambda on_episode: run_jobs(branch, jobs, on_episode, runner.max_in_flight), len(jobs)
        )
        flat = 0
        for number, (episode, begin) in enumerate(points):
            others = ended[number * self.branches : (number + 1) * self.branches]
            tails = [replace(one, steps=one.steps[begin:]) for one in (episode, *others)]
            rewards = [tail.reward for tail in tails]
            flat += not has_variance(rewards)
            for tail, advantage in zip(tails, group_advantages(rewards, len(tails)), strict=True):
                episodes.append(tail)
                advantages.append([advantage] * len(tail.steps))
                sizes.append(EpisodeSize.of(tail))
        log = {"rerolls/groups": float(len(points)), "rerolls/zero_std": flat / max(1, len(points))}
        self.log_with_update(log)
        return episodes, advantages, sizes
