"""Micro-batches of one update: closed, complete, within the budget, and none empty on any process."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from train.asynchronous.planning import plan_micro_batches


def sample(tokens: list[int], completion: int = 1, advantage: float = 1.0) -> dict[str, Any]:
    mask = [0] * (len(tokens) - completion) + [1] * completion
    return {
        "input_ids": np.array(tokens),
        "completion_mask": np.array(mask),
        "old_log_probs": np.zeros(len(tokens), dtype=np.float32),
        "advantage": advantage,
        "group_id": 0,
        "metrics": {},
    }


def random_samples(count: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    prefixes = [[rng.randrange(9) for _ in range(rng.randint(2, 12))] for _ in range(3)]
    return [sample(rng.choice(prefixes) + [rng.randrange(9) for _ in range(rng.randint(2, 6))]) for _ in range(count)]


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_every_sample_once_and_no_process_idle(processes: int, count: int) -> None:
    samples = random_samples(count, seed=count)
    planned = plan_micro_batches(samples, processes, token_budget=25)
    assert all(len(rows) == processes and all(row.samples for row in rows) for rows in planned)
    placed = [
        item["input_ids"].tolist() for rows in planned for row in rows for item in row.samples if item["advantage"]
    ]
    assert sorted(placed) == sorted(item["input_ids"].tolist() for item in samples)
    for row in (row for rows in planned for row in rows):
        assert len(row.samples) == 1 or (len(row.tokens) <= 25 and row.trained <= 25)


def test_shared_prefixes_are_computed_once() -> None:
    prefix = list(range(20))
    samples = [sample([*prefix, 30 + i % 2, 40 + i]) for i in range(6)] + [sample([50 + i for i in range(10)])]
    ((row,),) = plan_micro_batches(samples[::-1], 1, token_budget=100)
    # 19 shared tokens, the 20th once per continuation (a token is shared with its successor only), ...
    assert len(row.tokens) == 19 + 2 + 6 + 6 + 10


def test_a_sample_beyond_the_budget_is_alone_not_dropped() -> None:
    planned = plan_micro_batches([sample([1] * 30), sample([2, 3, 4])], 1, token_budget=10)
    assert sorted(len(row.tokens) for (row,) in planned) == [3, 30]


def test_a_process_without_a_sample_gets_one_that_adds_nothing() -> None:
    ((first, second),) = plan_micro_batches([sample([1, 2, 3])], 2, token_budget=10)
    assert {item["advantage"] for row in (first, second) for item in row.samples} == {1.0, 0.0}


def test_nothing_to_train_on() -> None:
    assert plan_micro_batches([], 2, token_budget=10) == []
