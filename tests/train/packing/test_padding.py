"""Padded micro-batches: every row once, within the budget, and only what was sampled is scored."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from trl.trainer.utils import add_fused_lm_head

from atommem.train.objective.sequences import Row
from atommem.train.packing.padding import IGNORED, fit_rows, pad_rows
from tests.train.harness import completion_logps
from tests.train.toys import make_model


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


def test_scores_are_those_of_single_rows_in_their_order() -> None:
    model = make_model()
    rows = [make_row(2, 3), make_row(5, 1), make_row(1, 2)]
    with torch.no_grad():
        expected = torch.cat([completion_logps(model, row.prompt_ids, row.completion_ids, 1.0) for row in rows])
        add_fused_lm_head(model, outputs=("log_probs", "entropy"))
        logps, entropies = pad_rows(rows, pad_token_id=41).score(model)
    assert torch.allclose(logps, expected, atol=1e-5)
    assert entropies is not None
    assert entropies.shape == logps.shape
    assert bool((entropies > 0).all())
