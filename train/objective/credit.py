"""Credit beyond one advantage for a whole episode: by state, and for a small memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from atommem.episode import Episode
from atommem.memory.log import replay

CREDIT = ("trajectory", "steps")


def reward_of(episode: Episode, compression: float = 0.0) -> float | None:
    """What an episode is compared by: its reward, and `compression` times the part of what it read that it did not keep
    (as Mem-alpha's, arXiv 2509.25911, and Memory-R2's, 2605.21768, reward or punish the size of a memory).

    Both are in characters: of the entries in its store at the end, and of the texts that it was shown. None of a failed
    episode.
    """
    if episode.reward is None or not compression:
        return episode.reward
    pieces = [piece for step in episode.steps for piece in step.observation.stream]
    read = sum(len(text) for piece in pieces for _, text in piece.walk() if isinstance(text, str))
    contents = replay(operation for step in episode.steps for operation in step.operations)
    kept = sum(len(entry.text) for entry in contents.entries.values())
    return episode.reward + compression * (1 - min(kept / read, 1.0) if read else 0.0)


def by_state(episodes: Sequence[Episode], rewards: Sequence[float | None]) -> list[list[float]]:
    """Of one group, for each step: its episode's reward minus the mean of all that came to the same state.

    The step part of GiGPO (arXiv 2505.10978, its eq. 7 undiscounted, not divided by the standard deviation). A state is
    a prompt: all that the policy knows. A state that one episode came to alone has nothing to be compared with: 0.

    Args:
        episodes: All of the group's.
        rewards: One for each; None where it failed.
    """
    met: dict[tuple[int, ...], list[float]] = defaultdict(list)
    states = [[tuple(step.prompt_ids) for step in episode.steps] for episode in episodes]
    for of, reward in zip(states, rewards, strict=True):
        for state in of if reward is not None else ():
            met[state].append(reward or 0.0)
    means = {state: sum(found) / len(found) for state, found in met.items()}
    return [
        [0.0 if reward is None or len(met[state]) < 2 else reward - means[state] for state in of]
        for of, reward in zip(states, rewards, strict=True)
    ]
