"""Rows -> what a model takes; a padded batch, for models whose attention cannot follow a trie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from atommem.train.objective.sequences import Row
from atommem.train.packing.tree import Tree

IGNORED = -100
"""Label of a token that is not scored, as everywhere in transformers."""


def fit_rows(lengths: Sequence[int], token_budget: int) -> list[int]:
    """How many rows each micro-batch has: at most `token_budget` padded tokens where it is more than one row.

    A micro-batch costs its padded area: rows x longest row. From the longest row to the shortest, padding stays small,
    and running out of memory would show at once.

    Args:
        lengths: Of the rows, the longest first.
        token_budget: Most padded tokens.
    """
    counts: list[int] = []
    start = 0
    while start < len(lengths):
        counts.append(min(max(1, token_budget // lengths[start]), len(lengths) - start))
        start += counts[-1]
    return counts


@dataclass(frozen=True)
class MicroBatch:
    """Some rows as a model takes them: padded, or packed into one.

    Attributes:
        inputs: Arguments of the model by name, (rows, tokens) each. ``shift_labels`` are the next token where it is
            scored, else `IGNORED`.
        token_index: (M,) place among all tokens whose prediction is each completion token, rows one after the other.
        tree: Who sees whom in a packed row.
    """

    inputs: dict[str, torch.Tensor]
    token_index: torch.Tensor
    tree: Tree | None = None

    def to(self, device: torch.device) -> MicroBatch:
        """The same on `device`."""
        inputs = {name: tensor.to(device) for name, tensor in self.inputs.items()}
        return MicroBatch(inputs, self.token_index.to(device), self.tree)

    @property
    def computed(self) -> int:
        """Tokens that go through the model."""
        return self.inputs["input_ids"].numel()

    def score(self, model: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probability (nats) and entropy of every completion token, rows one after the other: (M,) each.

        The entropy is None where the model's fused head (`trl.trainer.utils.add_fused_lm_head`), which it has to have,
        does not compute it. Of a packed row `use_tree_attention` has to be active.
        """
        given = {} if self.tree is None else {"tree": self.tree}
        outputs = model(**self.inputs, **given, fused_lm_head=True)
        entropies = None if outputs.entropy is None else outputs.entropy.flatten()[self.token_index]
        return outputs.log_probs.flatten()[self.token_index], entropies


def pad_rows(rows: Sequence[Row], pad_token_id: int) -> MicroBatch:
    """A rectangle of (rows, longest row), padded on the right; `rows` are at least one."""
    shape = (len(rows), max(map(len, rows)))
    input_ids, mask, labels = (
        torch.full(shape, pad_token_id),
        torch.zeros(shape).long(),
        torch.full(shape, IGNORED),
    )
    for index, row in enumerate(rows):
        prompt, end = len(row.prompt_ids), len(row)
        input_ids[index, :end] = torch.from_numpy(row.ids)
        mask[index, :end] = 1
        labels[index, prompt - 1 : end - 1] = input_ids[index, prompt:end]
    inputs = {"input_ids": input_ids, "attention_mask": mask, "shift_labels": labels}
    return MicroBatch(inputs, (labels != IGNORED).flatten().nonzero()[:, 0])
