"""Statistics over episodes, for training logs and evaluation reports.

`episode_sums` is additive over ranks and files; `means` turns sums into means and rates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import sqrt

from atommem.actions import ANSWER, MEMORY_KINDS, ProblemReason
from atommem.episode import Episode
from atommem.memory.log import POLICY, Outcome
from atommem.observation import StopReason

WASTED_OUTCOMES = (Outcome.UNKNOWN_HANDLE, Outcome.REJECTED, Outcome.DISABLED)

_PER_EPISODE = (
    "steps",
    "tokens/prompt",
    "tokens/completion",
    "retrievals",
    "store_size",
    "seconds",
)
_ACTION = "actions/"
_PER_STEP = (
    *(f"{_ACTION}{kind}" for kind in (*MEMORY_KINDS, ANSWER)),
    "malformed",
    "truncated",
    "thinking_cut",
    *(f"wasted/{outcome}" for outcome in WASTED_OUTCOMES),
)
_STOPS = tuple(f"stop/{reason}" for reason in StopReason)
_UNSCORED = "unscored"
_METRIC = "metric/"
_METRIC_COUNT = "metric_count/"


def episode_sums(episodes: Iterable[Episode]) -> dict[str, float]:
    """Return additive totals; failed episodes only count as ``episodes`` and ``failed``."""
    counts = ("reward", "reward_squared", "failed", "episodes")
    sums = defaultdict(float, dict.fromkeys((*_PER_EPISODE, *_PER_STEP, *_STOPS, *counts), 0.0))
    for episode in episodes:
        sums["episodes"] += 1
        sums[f"stop/{episode.stop_reason}"] += 1
        if episode.failed:
            sums["failed"] += 1
        else:
            _add_episode(sums, episode)
    return dict(sums)


def _add_episode(sums: defaultdict[str, float], episode: Episode) -> None:
    if episode.reward is None:
        sums[_UNSCORED] += 1
    else:
        sums["reward"] += episode.reward
        sums["reward_squared"] += episode.reward * episode.reward
    sums["steps"] += len(episode.steps)
    sums["seconds"] += episode.seconds
    sums["store_size"] += episode.steps[-1].store_size if episode.steps else 0
    for name, value in episode.metrics.items():
        add_value(sums, name, value)
    for step in episode.steps:
        sums["tokens/prompt"] += step.prompt_tokens
        sums["tokens/completion"] += step.completion_tokens
        sums["malformed"] += len(step.problems)
        sums["truncated"] += step.finish_reason == "length"
        sums["thinking_cut"] += any(
            problem.reason is ProblemReason.UNCLOSED_THINKING for problem in step.problems
        )
        for action in step.actions:
            sums[_ACTION + action.kind] += 1
        # Operations of rules are not the policy's.
        operations = [operation for operation in step.operations if operation.actor == POLICY]
        for operation in operations:
            if operation.outcome in WASTED_OUTCOMES:
                sums[f"wasted/{operation.outcome}"] += 1
        # Several reads of one completion set one query.
        sums["retrievals"] += any(
            operation.kind == "read" and operation.outcome is Outcome.APPLIED
            for operation in operations
        )


def add_value(sums: dict[str, float], name: str, value: float) -> None:
    """Add a value to the mean that `means` returns as `name`."""
    for key, amount in ((_METRIC + name, value), (_METRIC_COUNT + name, 1.0)):
        sums[key] = sums.get(key, 0.0) + amount


def means(sums: Mapping[str, float]) -> dict[str, float]:
    """Return means and rates; a mean over nothing is left out.

    Keys (means over episodes that did not fail, unless stated otherwise):
        episodes, failed: counts.
        reward, reward_std (of the population), and each metric by its name: of scored episodes.
        actions/KIND: parsed actions a step.
        malformed: parser problems a step.
        truncated, thinking_cut: completions cut at their limit, or inside a thinking block, a step.
        wasted/unknown_handle, /rejected, /disabled: actions without effect a step.
        steps, retrievals (completions with an applied read), tokens/prompt, tokens/completion,
            seconds: an episode.
        store_size: entries at the end.
        stop/REASON: the share of all episodes, including failed ones.
    """
    result = {"episodes": sums["episodes"], "failed": sums["failed"]}
    if sums["episodes"]:
        result.update({key: sums[key] / sums["episodes"] for key in _STOPS})
    ended = sums["episodes"] - sums["failed"]
    if ended:
        result.update({key: sums[key] / ended for key in _PER_EPISODE})
    if rewarded := ended - sums.get(_UNSCORED, 0.0):
        result["reward"] = sums["reward"] / rewarded
        result["reward_std"] = sqrt(
            max(sums["reward_squared"] / rewarded - result["reward"] ** 2, 0.0)
        )
    if sums["steps"]:
        per_step = [key for key in sums if key in _PER_STEP or key.startswith(_ACTION)]
        result.update({key: sums[key] / sums["steps"] for key in per_step})
    for key, count in sums.items():
        if key.startswith(_METRIC_COUNT) and count:
            name = key.removeprefix(_METRIC_COUNT)
            result[name] = sums[_METRIC + name] / count
    return result


def action_names(*statistics: Mapping[str, object]) -> list[str]:
    """Return the counted actions: the memory's, then those of environments."""
    found = {
        key.removeprefix(_ACTION)
        for entry in statistics
        for key in entry
        if key.startswith(_ACTION)
    }
    return [*MEMORY_KINDS, *sorted(found - set(MEMORY_KINDS))]


def add_sums(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Add several `episode_sums` (one a rank) by key."""
    total: defaultdict[str, float] = defaultdict(float)
    for part in parts:
        for key, value in part.items():
            total[key] += value
    return dict(total)
