"""Micro-batches: rows as one packed trie, or padded where a model's attention cannot follow one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from atommem.train.objective.rows import Row
from atommem.train.packing.tree_attention import Tree

IGNORED = -100
"""Label of a token that is not scored, as in transformers."""


@dataclass(frozen=True)
class MicroBatch:
    """Some rows as a model takes them.

    ``inputs["shift_labels"]`` holds the next token where it is scored, else `IGNORED`.
    """

    inputs: dict[str, torch.Tensor]  # (rows, tokens) each
    token_index: torch.Tensor  # (M,) flat positions that predict the completion tokens
    tree: Tree | None = None  # which tokens see which in a packed row

    def to(self, device: torch.device) -> MicroBatch:
        inputs = {name: tensor.to(device) for name, tensor in self.inputs.items()}
        return MicroBatch(inputs, self.token_index.to(device), self.tree)

    @property
    def computed(self) -> int:
        return self.inputs["input_ids"].numel()

    def score(self, model: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return log-probability (nats) and entropy of every completion token: (M,) each.

        `model` has TRL's fused head (`trl.trainer.utils.add_fused_lm_head`); entropies are None if
        that does not compute them. A packed row needs `use_tree_attention`.
        """
        tree = {} if self.tree is None else {"tree": self.tree}
        outputs = model(**self.inputs, **tree, fused_lm_head=True)
        entropies = None if outputs.entropy is None else outputs.entropy.flatten()[self.token_index]
        return outputs.log_probs.flatten()[self.token_index], entropies


def pad_rows(rows: Sequence[Row], pad_token_id: int) -> MicroBatch:
    """Make a right-padded rectangle of (rows, longest row)."""
    shape = (len(rows), max(map(len, rows)))
    input_ids = torch.full(shape, pad_token_id)
    mask = torch.zeros(shape).long()
    labels = torch.full(shape, IGNORED)
    for index, row in enumerate(rows):
        prompt, end = len(row.prompt_ids), len(row)
        input_ids[index, :end] = torch.from_numpy(row.ids)
        mask[index, :end] = 1
        labels[index, prompt - 1 : end - 1] = input_ids[index, prompt:end]
    inputs = {"input_ids": input_ids, "attention_mask": mask, "shift_labels": labels}
    return MicroBatch(inputs, (labels != IGNORED).flatten().nonzero()[:, 0])


def pack_rows(rows: Sequence[Row]) -> MicroBatch:
    """Pack rows that share prefixes into one row of unique tokens, a trie.

    The layout is that of TRL's `TreeRow`, built without a Python loop over tokens: in lexicographic
    order every row shares a prefix with the row before it and adds the rest, so the trie in
    pre-order is these rests, one after the other. Each row has a prompt token.
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
    own = list(zip(rows, shared, strict=True))
    ids = np.concatenate([row.ids[common:] for row, common in own]).astype(np.int64)
    depths = np.concatenate([np.arange(common, len(row)) for row, common in own])
    labels = np.full(length, IGNORED)
    labels[token_index] = np.concatenate([row.completion_ids for row in rows])
    boundaries = sorted(starts)
    arrays = {"input_ids": ids, "position_ids": depths, "shift_labels": labels}
    return MicroBatch(
        {name: torch.from_numpy(array)[None] for name, array in arrays.items()},
        torch.from_numpy(token_index),
        Tree.from_segments([*boundaries, length], depths[boundaries].tolist()),
    )


def shared_prefixes(rows: Sequence[Row]) -> list[int]:
    """Return how many tokens of each row `pack_rows` shares with the row before it.

    A token is shared if the rows also agree on the next one, so that every packed token has one
    next token to predict.
    """
    shared = [0] * bool(rows)
    for before, after in pairwise(row.ids for row in rows):
        length = min(len(before), len(after))
        different = before[:length] != after[:length]
        common = int(different.argmax()) if different.any() else length
        shared.append(common if len(before) == len(after) == common else max(0, common - 1))
    return shared
