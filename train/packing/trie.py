"""Rows that share prefixes -> one row of unique tokens (a trie), on TRL's `TreeRow`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from trl.experimental.async_grpo.packing import TreeRow

from atommem.train.objective.sequences import Row
from atommem.train.packing.tree_attention import Tree


@dataclass(frozen=True)
class Packed:
    """A micro-batch as one row of N unique tokens.

    Attributes:
        input_ids, position_ids, shift_labels: (1, N). Labels are the next token where it is scored, else -100.
        token_index: (M,) packed position whose prediction is each completion token, rows one after the other.
        tree: Who sees whom.
        kernel: The same for TRL's FlashAttention-3 kernel.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    shift_labels: torch.Tensor
    token_index: torch.Tensor
    tree: Tree
    kernel: dict[str, Any]

    def to(self, device: torch.device) -> Packed:
        """The same on `device`."""
        return Packed(
            self.input_ids.to(device),
            self.position_ids.to(device),
            self.shift_labels.to(device),
            self.token_index.to(device),
            self.tree,
            {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in self.kernel.items()},
        )

    @property
    def computed(self) -> int:
        """Tokens that go through the model."""
        return self.tree.length

    def score(self, model: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probability (nats) and entropy of every completion token, rows one after the other: (M,) each.

        The entropy is None where the model's fused head does not compute it. `use_tree_attention` has to be active,
        and the model to have TRL's fused head (`trl.trainer.utils.add_fused_lm_head`).
        """
        outputs = model(
            input_ids=self.input_ids,
            position_ids=self.position_ids,
            shift_labels=self.shift_labels,
            fused_lm_head=True,
            tree=self.tree,
            **self.kernel,
        )
        entropies = None if outputs.entropy is None else outputs.entropy.flatten()[self.token_index]
        return outputs.log_probs.flatten()[self.token_index], entropies


def pack_rows(rows: Sequence[Row]) -> Packed:
    """Fold `rows` (at least one, each with a prompt token) into a trie; only completion tokens are scored."""
    trie = TreeRow()
    for row in rows:
        prompt, completion = len(row.prompt_ids), len(row.completion_ids)
        trie.add(
            {
                "input_ids": np.array(row.prompt_ids + row.completion_ids),
                "completion_mask": np.array([0] * prompt + [1] * completion),
                "old_log_probs": np.zeros(prompt + completion),
                "advantage": 0.0,
                "group_id": None,
            }
        )
    packed = trie.pack()
    boundaries = packed["tree_cu_seqlens_q"].tolist()
    depths = packed["position_ids"][boundaries[:-1]].tolist()
    longest_segment, longest_path = packed["tree_max_seqlens"].tolist()
    return Packed(
        input_ids=packed["input_ids"][None],
        position_ids=packed["position_ids"][None],
        shift_labels=packed["shift_labels"][None],
        token_index=packed["token_index"],
        tree=Tree.from_segments(boundaries, depths),
        kernel={
            **{key: packed[key] for key in ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k")},
            "tree_max_seqlen_q": longest_segment,
            "tree_max_seqlen_k": longest_path,
        },
    )


def shared_prefixes(rows: Sequence[Row]) -> list[int]:
    """How many tokens of each row `pack_rows` shares with the row before it; 0 for the first.

    In lexicographic order, no earlier row shares more. A token is shared where the rows also agree on the next one:
    that is how `TreeRow` makes its nodes.
    """
    sequences = [np.array(row.prompt_ids + row.completion_ids) for row in rows]
    shared = [0] * bool(sequences)
    for before, after in pairwise(sequences):
        length = min(len(before), len(after))
        different = np.flatnonzero(before[:length] != after[:length])
        common = int(different[0]) if different.size else length
        shared.append(common if len(before) == len(after) == common else max(0, common - 1))
    return shared
