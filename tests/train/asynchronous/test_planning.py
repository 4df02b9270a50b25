"""Micro-batches of one update: closed, complete, within the budget, and none empty on any process."""

from __future__ import annotations

import random

import numpy as np
import pytest
from trl.experimental.async_grpo.packing import TreeRow

from atommem.train.loops.asynchronous.async_planning import plan_micro_batches
from atommem.train.loops.asynchronous.updates import Sample

PAIR = 0.01


def sample(tokens: list[int], completion: int = 1, advantage: float = 1.0) -> Sample:
    logprobs = np.zeros(completion, dtype=np.float32)
    return Sample(np.array(tokens, dtype=np.int32), logprobs, advantage, group_id=0, model_version=0)


def pack(part: list[Sample]) -> TreeRow:
    """What the trainer makes of a part."""
    row = TreeRow()
    for item in part:
        row.add(item.tree_input())
    return row


def random_samples(count: int, seed: int) -> list[Sample]:
    rng = random.Random(seed)
    prefixes = [[rng.randrange(9) for _ in range(rng.randint(2, 12))] for _ in range(3)]
    return [sample(rng.choice(prefixes) + [rng.randrange(9) for _ in range(rng.randint(2, 6))]) for _ in range(count)]


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_every_sample_once_and_no_process_idle(processes: int, count: int) -> None:
    samples = random_samples(count, seed=count)
    planned = plan_micro_batches(samples, processes, 25, PAIR)
    assert all(len(parts) == processes and all(parts) for parts in planned)
    placed = [item for parts in planned for part in parts for item in part if item.advantage]
    assert sorted(item.input_ids.tolist() for item in placed) == sorted(item.input_ids.tolist() for item in samples)
    for part in (part for parts in planned for part in parts):
        assert len(part) == 1 or len(pack(part).tokens) <= 25


def test_shared_prefixes_are_computed_once() -> None:
    prefix = list(range(20))
    samples = [sample([*prefix, 30 + i % 2, 40 + i]) for i in range(6)] + [sample([50 + i for i in range(10)])]
    ((part,),) = plan_micro_batches(samples[::-1], 1, 47, PAIR)
    # 19 shared tokens, the 20th once per continuation (a token is shared with its successor only), ...
    assert len(pack(part).tokens) == 19 + 2 + 6 + 6 + 10
    assert len(plan_micro_batches(samples[::-1], 1, 40, PAIR)) == 2


def test_processes_get_about_the_same() -> None:
    samples = [sample([i, *range(100, 100 + 20)]) for i in range(8)]
    ((first, second),) = plan_micro_batches(samples, 2, 10_000, PAIR)
    assert len(first) == len(second) == 4


def test_a_sample_beyond_the_budget_is_alone_not_dropped() -> None:
    planned = plan_micro_batches([sample([1] * 30), sample([2, 3, 4])], 1, 10, PAIR)
    assert sorted(len(pack(part).tokens) for (part,) in planned) == [3, 30]


def test_a_process_without_a_sample_gets_one_that_adds_nothing() -> None:
    ((first, second),) = plan_micro_batches([sample([1, 2, 3])], 2, 10, PAIR)
    assert [item.advantage for item in first + second] == [1.0, 0.0]


def test_nothing_to_train_on() -> None:
    assert plan_micro_batches([], 2, 10, PAIR) == []
