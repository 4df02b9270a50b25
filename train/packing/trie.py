"""Rows that share prefixes -> one row of unique tokens (a trie), laid out as TRL's `TreeRow` does.

`TreeRow` builds it token by token in Python. Here nothing is done by token: in lexicographic order every row shares a
prefix with the row before it and adds the rest, so that the trie in pre-order is these rests, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from atommem.train.objective.sequences import Row
from atommem.train.packing.padding import IGNORED
from atommem.train.packing.tree import Tree


@dataclass(frozen=True)
class Packed:
    """A micro-batch as one row of N unique tokens.

    Attributes:
        input_ids, position_ids, shift_labels: (1, N). Labels are the next token where it is scored, else `IGNORED`.
        token_index: (M,) packed position whose prediction is each completion token, rows one after the other.
        tree: Who sees whom.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    shift_labels: torch.Tensor
    token_index: torch.Tensor
    tree: Tree

    def to(self, device: torch.device) -> Packed:
        """The same on `device`."""
        tensors = ("input_ids", "position_ids", "shift_labels", "token_index")
        return replace(self, **{name: getattr(self, name).to(device) for name in tensors})

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
        )
        entropies = None if outputs.entropy is None else outputs.entropy.flatten()[self.token_index]
        return outputs.log_probs.flatten()[self.token_index], entropies


def pack_rows(rows: Sequence[Row]) -> Packed:
    """Fold `rows` (at least one, each with a prompt token) into a trie; only completion tokens are scored.

    In lexicographic order all prefixes are shared, in another order those of neighbours.
    """
    path, scored, starts, length = np.zeros(0, dtype=np.int64), [], {0}, 0
    shared = shared_prefixes(rows)
    for row, common in zip(rows, shared, strict=True):
        added = len(row) - common
        if added:
            # A segment ends where a row leaves the path of the one before it, and where a row ends.
            starts |= {*path[common : common + 1].tolist(), length}
        path = np.concatenate((path[:common], np.arange(length, length + added)))
        scored.append(path[len(row.prompt_ids) - 1 : -1])
        length += added
    token_index = np.concatenate(scored)
    ids = np.concatenate([row.ids[common:] for row, common in zip(rows, shared, strict=True)]).astype(np.int64)
    depths = np.concatenate([np.arange(common, len(row)) for row, common in zip(rows, shared, strict=True)])
    labels = np.full(length, IGNORED)
    labels[token_index] = np.concatenate([row.completion_ids for row in rows])
    boundaries = sorted(starts)
    return Packed(
        input_ids=torch.from_numpy(ids)[None],
        position_ids=torch.from_numpy(depths)[None],
        shift_labels=torch.from_numpy(labels)[None],
        token_index=torch.from_numpy(token_index),
        tree=Tree.from_segments([*boundaries, length], depths[boundaries].tolist()),
    )


def shared_prefixes(rows: Sequence[Row]) -> list[int]:
    """How many tokens of each row `pack_rows` shares with the row before it; 0 for the first.

    In lexicographic order, no earlier row shares more. A token is shared where the rows also agree on the next one, so
    that every packed token has one next token to predict.
    """
    shared = [0] * bool(rows)
    for before, after in pairwise(row.ids for row in rows):
        length = min(len(before), len(after))
        different = before[:length] != after[:length]
        common = int(different.argmax()) if different.any() else length
        shared.append(common if len(before) == len(after) == common else max(0, common - 1))
    return shared
