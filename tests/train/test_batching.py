"""Micro-batches: every row once, within the budget, and padded as the loss expects."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atommem.train.objective.sequences import Row
from atommem.train.packing.padding import pad_rows, plan_micro_batches


def make_row(prompt: int, completion: int, weight: float = 1.0) -> Row:
    prompt_ids, completion_ids = list(range(1, prompt + 1)), list(range(101, 101 + completion))
    return Row(prompt_ids, completion_ids, [-float(i) for i in range(completion)], 0, 0.5, weight)


LENGTHS = st.lists(st.integers(2, 60), max_size=50).map(lambda lengths: sorted(lengths, reverse=True))


@given(st.lists(LENGTHS, min_size=1, max_size=4), st.integers(1, 400))
def test_every_row_once_and_within_the_budget_on_every_rank(ranks: list[list[int]], budget: int) -> None:
    counts = plan_micro_batches(ranks, budget)
    assert sum(counts) == max(map(len, ranks))
    start = 0
    for index, count in enumerate(counts):
        longest = max(rank[start] for rank in ranks if start < len(rank))
        assert count >= 1
        assert count == 1 or count * longest <= budget
        # No further row would have fitted.
        assert index == len(counts) - 1 or (count + 1) * longest > budget
        start += count


def test_the_rank_with_the_longest_rows_sets_the_count() -> None:
    assert plan_micro_batches([[10, 10, 10, 5], [30, 4]], 60) == [2, 2]
    assert plan_micro_batches([[], []], 60) == []


def test_rows_end_in_the_last_column() -> None:
    padded = pad_rows([make_row(2, 3), make_row(4, 1, weight=0.25)], 2, pad_token_id=9)
    ids = np.concatenate([padded.prompt_ids, padded.completion_ids], axis=1)
    mask = np.concatenate([padded.prompt_mask, padded.completion_mask], axis=1)
    assert ids.tolist() == [[1, 2, 101, 102, 103], [1, 2, 3, 4, 101]]
    assert mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 1]]
    assert padded.completion_ids.tolist() == [[101, 102, 103], [3, 4, 101]]
    assert padded.weights.tolist() == [[1.0, 1.0, 1.0], [0.0, 0.0, 0.25]]
    assert padded.logprobs.tolist() == [[0.0, -1.0, -2.0], [0.0, 0.0, 0.0]]
    assert padded.advantages.tolist() == [0.5, 0.5]


def test_shorter_rows_are_padded_on_the_left() -> None:
    padded = pad_rows([make_row(3, 2), make_row(1, 1)], 2, pad_token_id=9)
    assert padded.prompt_ids.tolist() == [[1, 2, 3], [9, 9, 9]]
    assert padded.prompt_mask.tolist() == [[1, 1, 1], [0, 0, 0]]
    assert padded.completion_ids.tolist() == [[101, 102], [1, 101]]
    assert padded.completion_mask.tolist() == [[1, 1], [1, 1]]


def test_missing_rows_are_filled_up_without_weight() -> None:
    padded = pad_rows([make_row(2, 2)], 3, pad_token_id=9)
    assert padded.prompt_ids.tolist() == [[1, 2], [9, 9], [9, 9]]
    assert padded.prompt_mask.tolist() == [[1, 1], [0, 0], [0, 0]]
    assert padded.completion_mask.tolist() == [[1, 1], [1, 1], [1, 1]]
    assert padded.weights.tolist() == [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    assert padded.advantages.tolist() == [0.5, 0.0, 0.0]
    nothing = pad_rows([], 2, pad_token_id=9)
    assert nothing.completion_mask.tolist() == [[1, 1], [1, 1]]
    assert nothing.prompt_mask.tolist() == [[0], [0]]
    assert nothing.weights.sum() == 0.0


def test_a_completion_part_has_at_least_two_columns() -> None:
    padded = pad_rows([make_row(1, 1)], 1, pad_token_id=9)
    assert padded.prompt_ids.tolist() == [[9]]
    assert padded.completion_ids.tolist() == [[1, 101]]
    assert padded.weights.tolist() == [[0.0, 1.0]]
