"""Log-probabilities of rows that share prefixes: each distinct token is computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from atommem.train.objective.sequences import Row
from atommem.train.packing.planning import cut, lexicographic
from atommem.train.packing.tree_attention import use_tree_attention
from atommem.train.packing.trie import Packed, pack_rows, shared_prefixes


def packed_forward(model: Any, packed: Packed) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probability (nats) and entropy of every completion token, rows one after the other: (M,) each.

    The entropy is None where the model's fused head does not compute it. `use_tree_attention` has to be active, and
    the model to have TRL's fused head (`trl.trainer.utils.add_fused_lm_head`).
    """
    outputs = model(
        input_ids=packed.input_ids,
        position_ids=packed.position_ids,
        shift_labels=packed.shift_labels,
        fused_lm_head=True,
        tree=packed.tree,
    )
    entropies = None if outputs.entropy is None else outputs.entropy.flatten()[packed.token_index]
    return outputs.log_probs.flatten()[packed.token_index], entropies


@torch.no_grad()
def completion_logps(
    model: Any,
    rows: Sequence[Row],
    pair_cost: float,
    token_budget: int,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> list[float]:
    """Summed log-probability (nats) of each row's completion.

    Args:
        model: Unwrapped.
        rows: In any order.
        pair_cost: What an attended pair costs (`atommem.train.packing.planning.pair_cost`).
        token_budget: Most distinct tokens in one pass of more than one row.
        device: Of the model.
        autocast: Context of the forward pass (`Accelerator.autocast`).
    """
    ordered = lexicographic(rows)
    found: dict[int, float] = {}
    start = 0
    with use_tree_attention(model), autocast():
        for count in cut([len(row) for row in ordered], shared_prefixes(ordered), pair_cost, token_budget):
            part, start = ordered[start : start + count], start + count
            logps, _ = packed_forward(model, pack_rows(part).to(device))
            sums = [piece.sum().item() for piece in logps.split([len(row.completion_ids) for row in part])]
            found.update(zip(map(id, part), sums, strict=True))
    return [found[id(row)] for row in rows]
