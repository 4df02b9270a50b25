"""`means` of `episode_sums` against numbers counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from atommem.actions import Action, Problem, ProblemReason
from atommem.episode import Episode, Observation, Step, StopReason, add_sums, episode_sums, means
from atommem.memory.log import MemoryView, Operation, Outcome


def step(kinds: list[str], outcomes: list[tuple[str, Outcome]], problems: int, size: int) -> Step:
    actions = tuple(Action(kind) for kind in kinds)
    wrong = (Problem(ProblemReason.EMPTY, "x", 0, 1),) * problems
    operations = tuple(Operation(0, kind, outcome) for kind, outcome in outcomes)
    tokens: Any = ([1, 2, 3], [4, 5], [-0.1, -0.2])
    seen, view = Observation("reading"), MemoryView()
    return Step(
        0, seen, view, *tokens, "", "stop", actions, wrong, operations, size, prompt_tokens=3
    )


CREATE, READ, DELETE = "create", "read", "delete"


def episodes() -> list[Episode]:
    creates = [(CREATE, Outcome.APPLIED), (CREATE, Outcome.REJECTED)]
    reads = [(READ, Outcome.APPLIED), (DELETE, Outcome.UNKNOWN_HANDLE)]
    first = Episode("a", 0, reward=1.0, stop_reason=StopReason.ANSWERED, seconds=2.0)
    first.steps = [
        step([CREATE, CREATE, READ], creates, 1, 1),
        step([READ, DELETE], reads, 0, 1),
        step(["answer"], [], 0, 1),
    ]
    first.metrics = {"em": 1.0, "f1": 1.0}
    second = Episode("a", 1, reward=0.0, stop_reason=StopReason.STEP_LIMIT, seconds=4.0)
    second.steps = [step([], [(READ, Outcome.DISABLED)], 2, 0)]
    second.metrics = {"em": 0.0, "f1": 0.5}
    failed = Episode("b", 0, steps=[step([CREATE], [], 0, 9)], stop_reason=StopReason.FAILED)
    return [first, second, failed]


def test_means_equal_a_count_by_hand() -> None:
    whole = episodes()
    cut, reading, _ = whole[0].steps
    cut.finish_reason = "length"
    cut.problems = (Problem(ProblemReason.UNCLOSED_THINKING, "think", 0, 1),)
    reading.operations += (  # none of these is an action of the policy
        Operation(0, "read", before="a", after="b"),
        Operation(0, "delete", entry_id=1, before="x", actor="retention:lru"),
        Operation(0, "read", Outcome.DISABLED, actor="user"),
        Operation(0, "retrieve", actor="memory"),
    )
    summary = means(episode_sums(whole))
    expected = {
        "episodes": 3,
        "failed": 1,
        "reward": 0.5,
        "reward_std": 0.5,
        "em": 0.5,
        "f1": 0.75,
        "steps": 2.0,
        "seconds": 3.0,
        "store_size": 0.5,
        "retrievals": 0.5,
        "tokens/prompt": 6.0,
        "tokens/completion": 4.0,
        "actions/create": 2 / 4,
        "actions/read": 2 / 4,
        "actions/delete": 1 / 4,
        "actions/update": 0.0,
        "actions/scratchpad": 0.0,
        "actions/answer": 1 / 4,
        "malformed": 3 / 4,
        "truncated": 1 / 4,
        "thinking_cut": 1 / 4,
        "wasted/rejected": 1 / 4,
        "wasted/unknown_handle": 1 / 4,
        "wasted/disabled": 1 / 4,
        "stop/answered": 1 / 3,
        "stop/step_limit": 1 / 3,
        "stop/failed": 1 / 3,
        "stop/unanswered": 0.0,
        "stop/token_limit": 0.0,
        "stop/time_limit": 0.0,
        "stop/context_overflow": 0.0,
    }
    assert summary == pytest.approx(expected)
    parts = [episode_sums(whole[:1]), episode_sums(whole[1:]), episode_sums([])]
    assert means(add_sums(parts)) == pytest.approx(expected), "sums of parts give the whole"
    assert means(episode_sums([])) == {"episodes": 0, "failed": 0}
