"""Packed tries against TRL's, which it builds token by token."""

from __future__ import annotations

import random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from trl.experimental.async_grpo.packing import TreeRow

from atommem.train.packing.planning import lexicographic
from atommem.train.packing.tree import kernel_arguments
from atommem.train.packing.trie import pack_rows
from tests.train.toys import make_row


@given(st.integers(0, 10_000), st.integers(1, 14))
def test_the_layout_is_trls(seed: int, count: int) -> None:
    """Over few tokens, so that prefixes of all lengths are shared, rows are equal, and rows begin others."""
    rng = random.Random(seed)
    ids = [
        [rng.choices(range(2), k=rng.randint(1, longest)) for longest in (6, 5)]
        for _ in range(count)
    ]
    rows = lexicographic([make_row(*both) for both in ids])
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


def test_in_another_order_less_is_shared() -> None:
    rows = [make_row([1, 2, 3], [4]), make_row([9], [9]), make_row([1, 2, 3], [5])]
    assert pack_rows(rows).inputs["input_ids"].tolist() == [[1, 2, 3, 4, 9, 9, 1, 2, 3, 5]]
    assert pack_rows(lexicographic(rows)).inputs["input_ids"].tolist() == [[1, 2, 3, 4, 3, 5, 9, 9]]
