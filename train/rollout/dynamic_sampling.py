"""Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2), bounded: groups that teach nothing get other tasks."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any

from atommem.train.objective.advantages import has_variance


def replacement_tasks(
    rewards: Sequence[float | None], group_size: int, tasks: Sequence[Any], seen: Collection[str], seed: str
) -> dict[int, Any]:
    """New tasks for the groups whose rewards are all equal.

    Args:
        rewards: Of every episode of the global batch, group after group (None: failed).
        group_size: Episodes of a group.
        tasks: All training tasks.
        seen: Ids of those that this update has used; none of them is drawn.
        seed: What the draw depends on: with the same one, every rank and a resumed run draw the same.

    Returns:
        Task by the group's number in the global batch; fewer than there are such groups where tasks run out.
    """
    flat = [i for i in range(len(rewards) // group_size) if not has_variance(rewards[i * group_size :][:group_size])]
    unseen = [task for task in tasks if task.id not in seen]
    return dict(zip(flat, random.Random(seed).sample(unseen, min(len(flat), len(unseen))), strict=False))
