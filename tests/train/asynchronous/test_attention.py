"""TRL's packing with our attention, against one sample at a time."""

from __future__ import annotations

from typing import Any

import torch
from trl.experimental.async_grpo.packing import TREE_ATTENTION, register_tree_attention

from atommem.train.loops.asynchronous.async_planning import plan_micro_batches
from atommem.train.loops.asynchronous.attention import has_flash_attention_3, use_torch_tree_attention
from tests.train.asynchronous.test_planning import PAIR, pack, random_samples
from tests.train.toys import make_model

KEYS = ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k")


def test_packed_logits_are_those_of_single_samples() -> None:
    register_tree_attention()
    use_torch_tree_attention()
    plain, packed_model = make_model(seed=3), make_model(seed=3)
    packed_model.set_attn_implementation(TREE_ATTENTION)
    planned = plan_micro_batches(random_samples(12, seed=5), 1, 60, PAIR)
    assert len(planned) > 1  # trees of different shapes
    for (part,) in planned:
        packed: dict[str, Any] = pack(part).pack()
        with torch.no_grad():
            logits = packed_model(
                input_ids=packed["input_ids"][None],
                position_ids=packed["position_ids"][None],
                tree_max_seqlen_q=int(packed["tree_max_seqlens"][0]),
                tree_max_seqlen_k=int(packed["tree_max_seqlens"][1]),
                **{key: packed[key] for key in KEYS},
            ).logits[0]
            expected = [plain(input_ids=torch.tensor(s.input_ids)[None]).logits[0, -2] for s in part]
        # The one trained token of a sample is scored from its last but one position.
        torch.testing.assert_close(logits[packed["token_index"]], torch.stack(expected), atol=1e-5, rtol=1e-5)


def test_no_kernel_without_a_gpu() -> None:
    assert not has_flash_attention_3(torch.device("cpu"))
