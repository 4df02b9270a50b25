"""Local rerolls: a moment of an episode, gone on from several times (Memory-R2's local part, arXiv 2605.21768).

Episodes of a group soon have different memories, and their rewards then compare more than one decision. What goes on
from one moment has one memory. The log says what it held, so a moment costs no more than the environment's way there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from atommem.episode import Episode
from atommem.episode_runner import EpisodeRunner, run_jobs
from atommem.train.rollout.dynamic_sampling import GroupPart


@dataclass(frozen=True, slots=True)
class Moment:
    """Before which step of which episode it is gone on from."""

    task: Any
    episode: Episode
    begin: int


def moments(parts: Sequence[GroupPart], seed: str) -> list[Moment]:
    """One of each group, at random: before any step of any of its episodes but the first one, which all of them share.

    Args:
        parts: Whole groups, ended.
        seed: What the draw depends on.
    """
    found = []
    for part in parts:
        task = part.tasks[0]
        after = [each for each in part.episodes if not each.failed and len(each.steps) > 1]
        if after:
            drawn = random.Random(f"{seed}/{task.id}")
            episode = drawn.choice(after)
            found.append(Moment(task, episode, drawn.randrange(1, len(episode.steps))))
    return found


async def reroll(
    runner: EpisodeRunner,
    begun: Sequence[Moment],
    samples: range,
    on_episode: Callable[[int, Episode], None] | None = None,
) -> list[list[Episode]]:
    """For each moment its own episode, and as many others from there on as there are `samples`; all of them whole."""

    async def run(moment: Moment, sample: int) -> Episode:
        return await runner.run(moment.task, sample, past=moment.episode.steps[: moment.begin])

    jobs = [(moment, sample) for moment in begun for sample in samples]
    episodes = iter(await run_jobs(run, jobs, on_episode, runner.max_in_flight))
    return [[moment.episode, *(next(episodes) for _ in samples)] for moment in begun]
