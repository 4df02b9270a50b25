"""Which step earned the reward? An experiment: leave-one-out credit instead of the same advantage for every step.

GRPO gives all steps of an episode its advantage A. Here the answer phase is replayed without one item of the
memory at a time (an entry that was shown, or the scratchpad). What that does to the log-probability of a right
answer is the item's credit, a difference reward (Wolpert and Tumer, 2002)::

    d_i = log p(answer | all items) - log p(answer | all but item i)

It goes in equal parts to the steps that are responsible for the item: those that wrote it, the last read, and the
answering step. With c_t the sum of a step's parts, taken over items with d_i > 0 where A > 0 (they helped) and over
those with d_i < 0 where A < 0 (they misled), the advantages of an episode of T steps are

    A_t = A * ((1 - share) + share * T * c_t / sum(c)),        sum(A_t) = T * A

as with uniform credit. Where no item matters, credit is uniform. The right answer is what the best episode of the
group wrote at that question, in the policy's own tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from atommem.actions import ActionKind
from atommem.episode import Episode, Step
from atommem.memory.entries import MemoryView
from atommem.memory.operations import Outcome
from atommem.prompts import PromptBuilder
from atommem.train.objective.sequences import Row

CREDITS = ("uniform", "leave_one_out")

Scorer = Callable[[Sequence[Row]], list[float]]
"""Summed log-probability of each row's completion under the current policy (nats)."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The answer phase of one question with an item of the memory removed.

    Attributes:
        episode: Index of the episode.
        steps: Indices of the steps that are responsible for the item.
        full, without: Prompt and right answer, with the item and without it.
    """

    episode: int
    steps: tuple[int, ...]
    full: Row
    without: Row


def leave_one_out_weights(
    episodes: Sequence[Episode],
    advantages: Sequence[float],
    group_size: int,
    prompts: PromptBuilder,
    score: Scorer,
    share: float,
) -> list[list[float]]:
    """What each step's advantage is multiplied by.

    Args:
        episodes: Whole groups, one after the other; a group that is not whole gets uniform credit.
        advantages: One per episode.
        group_size: Episodes in a group.
        prompts: What the episodes' prompts were built with.
        score: Log-probabilities under the current policy.
        share: How much of the advantage is distributed by credit, 0 to 1.

    Returns:
        For each episode one weight per step, with a mean of 1.
    """
    replays: list[Replay] = []
    for start in range(0, len(episodes), group_size):
        group = range(start, min(start + group_size, len(episodes)))
        if len({episodes[i].task_id for i in group}) == 1:
            replays += _group_replays(episodes, advantages, group, prompts)
    # The prompt with all items is the same for every item of a question.
    rows = list({id(row): row for replay in replays for row in (replay.full, replay.without)}.values())
    logps = dict(zip(map(id, rows), score(rows), strict=True)) if rows else {}
    credits = [[0.0] * len(episode.steps) for episode in episodes]
    for replay in replays:
        difference = logps[id(replay.full)] - logps[id(replay.without)]
        signed = difference if advantages[replay.episode] > 0 else -difference
        for step in replay.steps:
            credits[replay.episode][step] += max(0.0, signed) / len(replay.steps)
    return [step_weights(credit, share) for credit in credits]


def step_weights(credits: Sequence[float], share: float) -> list[float]:
    """The bracket of the module's second equation, for every step."""
    total = sum(credits)
    if total <= 0.0:
        return [1.0] * len(credits)
    return [(1.0 - share) + share * len(credits) * credit / total for credit in credits]


def _group_replays(
    episodes: Sequence[Episode], advantages: Sequence[float], group: Sequence[int], prompts: PromptBuilder
) -> list[Replay]:
    best = max(group, key=lambda i: _reward(episodes[i]))
    right = {step.observation.question_index: step for step in episodes[best].steps if _answers(step)}
    replays = []
    for i in group:
        if advantages[i] == 0.0:
            continue
        for step in episodes[i].steps:
            reference = right.get(step.observation.question_index) if _answers(step) else None
            if reference is None:
                continue
            full = _row(step.prompt_ids, reference.token_ids)
            for view, responsible in _without_one(episodes[i], step):
                reduced = _row(prompts.build(step.observation, view), reference.token_ids)
                replays.append(Replay(i, responsible, full, reduced))
    return replays


def _reward(episode: Episode) -> float:
    return -1.0 if episode.reward is None else episode.reward


def _answers(step: Step) -> bool:
    return step.observation.phase == "answering" and any(action.kind is ActionKind.ANSWER for action in step.actions)


def _without_one(episode: Episode, step: Step) -> list[tuple[MemoryView, tuple[int, ...]]]:
    """Each view that lacks one item of `step`'s, and the steps that are responsible for the item."""
    done = [
        operation
        for earlier in episode.steps[: step.index]
        for operation in earlier.operations
        if operation.outcome is Outcome.APPLIED
    ]
    reads = [operation.step for operation in done if operation.kind == "read"][-1:]
    found = []
    for item in step.view.retrieved:
        others = [other for other in step.view.retrieved if other is not item]
        renumbered = tuple(replace(other, handle=handle) for handle, other in enumerate(others, start=1))
        writes = [
            operation.step
            for operation in done
            if operation.entry_id == item.entry_id and operation.kind in ("create", "update")
        ]
        responsible = tuple(sorted({*writes, *reads, step.index}))
        found.append((replace(step.view, retrieved=renumbered), responsible))
    if step.view.scratchpad:
        written = [operation.step for operation in done if operation.kind == "scratchpad"][-1:]
        found.append((replace(step.view, scratchpad=""), tuple(sorted({*written, step.index}))))
    return found


def _row(prompt_ids: list[int], completion_ids: list[int]) -> Row:
    return Row(prompt_ids, completion_ids, [0.0] * len(completion_ids), episode=0, advantage=0.0, weight=1.0)
