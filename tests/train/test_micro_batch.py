"""Packed tries against TRL's, and padded rows."""

from __future__ import annotations

import random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from trl.experimental.async_grpo.packing import TreeRow

from atommem.train.packing.micro_batch import IGNORED, pack_rows, pad_rows
from atommem.train.packing.planning import lexicographic
from atommem.train.packing.tree_attention import kernel_arguments
from tests.train.toys import make_row


@given(st.integers(0, 10_000), st.integers(1, 14))
def test_pack_rows_has_the_layout_of_trl(seed: int, count: int) -> None:
    """Over two tokens, so that prefixes of all lengths are shared, and some rows are equal."""
    rng = random.Random(seed)
    lengths = [(rng.randint(1, 6), rng.randint(1, 5)) for _ in range(count)]
    rows = lexicographic([make_row(*(rng.choices(range(2), k=k) for k in n)) for n in lengths])
    theirs = TreeRow()
    for row in rows:
        mask = np.arange(len(row)) >= len(row.prompt_ids)
        sample = {"input_ids": row.ids, "completion_mask": mask, "old_log_probs": mask * 0.0}
        theirs.add(sample | {"advantage": 0.0, "group_id": None})
    expected, packed = theirs.pack(), pack_rows(rows)
    for name in ("input_ids", "position_ids", "shift_labels"):
        assert packed.inputs[name].tolist() == [expected[name].tolist()]
    assert packed.token_index.tolist() == expected["token_index"].tolist()
    kernel = kernel_arguments(packed.tree, torch.device("cpu"))
    for name in ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k"):
        assert kernel[name].tolist() == expected[name].tolist()
        assert kernel[name].dtype == expected[name].dtype
    longest = [kernel["tree_max_seqlen_q"], kernel["tree_max_seqlen_k"]]
    assert longest == expected["tree_max_seqlens"].tolist()


def test_pad_rows_pads_on_the_right_and_labels_completions() -> None:
    padded = pad_rows([make_row([1, 2], [31, 32, 33]), make_row([1, 2, 3], [31])], pad_token_id=9)
    assert {name: tensor.tolist() for name, tensor in padded.inputs.items()} == {
        "input_ids": [[1, 2, 31, 32, 33], [1, 2, 3, 31, 9]],
        "attention_mask": [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]],
        "shift_labels": [[IGNORED, 31, 32, 33, IGNORED], [IGNORED, IGNORED, 31, IGNORED, IGNORED]],
    }
    assert (padded.token_index.tolist(), padded.computed) == ([1, 2, 3, 7], 10)
