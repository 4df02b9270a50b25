"""Padded micro-batches: every row once, within the budget, and labelled where it was sampled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atommem.train.objective.sequences import Row
from atommem.train.packing.padding import IGNORED, fit_rows, pad_rows


def make_row(prompt: int, completion: int) -> Row:
    prompt_ids, completion_ids = list(range(1, prompt + 1)), list(range(31, 31 + completion))
    return Row(prompt_ids, completion_ids, [0.0] * completion, 0, 0.5, 1.0)


@given(st.lists(st.integers(2, 60), max_size=50), st.integers(1, 400))
def test_every_row_once_and_within_the_budget(lengths: list[int], budget: int) -> None:
    lengths = sorted(lengths, reverse=True)
    counts = fit_rows(lengths, budget)
    assert sum(counts) == len(lengths)
    start = 0
    for index, count in enumerate(counts):
        assert count >= 1
        assert count == 1 or count * lengths[start] <= budget
        # No further row would have fitted.
        assert index == len(counts) - 1 or (count + 1) * lengths[start] > budget
        start += count


def test_rows_are_padded_on_the_right_and_completions_labelled() -> None:
    padded = pad_rows([make_row(2, 3), make_row(3, 1)], pad_token_id=9)
    assert padded.input_ids.tolist() == [[1, 2, 31, 32, 33], [1, 2, 3, 31, 9]]
    assert padded.attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert padded.labels.tolist() == [[IGNORED, IGNORED, 31, 32, 33], [IGNORED, IGNORED, IGNORED, 31, IGNORED]]
    assert padded.computed == 10
