"""Rows -> a padded batch, for models whose attention cannot follow a trie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from atommem.train.objective.sequences import Row

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
class Padded:
    """A micro-batch as a rectangle of (rows, longest row), padded on the right.

    Attributes:
        input_ids, attention_mask: As a model takes them.
        labels: `IGNORED` where nothing was sampled.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    labels: torch.Tensor

    def to(self, device: torch.device) -> Padded:
        """The same on `device`."""
        return Padded(self.input_ids.to(device), self.attention_mask.to(device), self.labels.to(device))

    @property
    def computed(self) -> int:
        """Tokens that go through the model."""
        return self.input_ids.numel()

    def score(self, model: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probability (nats) and entropy of every completion token, rows one after the other: (M,) each.

        As `atommem.train.packing.trie.Packed.score`, in the same order.
        """
        outputs = model(
            input_ids=self.input_ids, attention_mask=self.attention_mask, labels=self.labels, fused_lm_head=True
        )
        entropies = None if outputs.entropy is None else outputs.entropy[outputs.label_mask]
        return outputs.log_probs[outputs.label_mask], entropies


def pad_rows(rows: Sequence[Row], pad_token_id: int) -> Padded:
    """Pad `rows` (at least one) to the longest of them."""
    shape = (len(rows), max(map(len, rows)))
    input_ids, mask, labels = torch.full(shape, pad_token_id), torch.zeros(shape).long(), torch.full(shape, IGNORED)
    for index, row in enumerate(rows):
        prompt, end = len(row.prompt_ids), len(row)
        input_ids[index, :end] = torch.from_numpy(row.ids)
        mask[index, :end] = 1
        labels[index, prompt:end] = input_ids[index, prompt:end]
    return Padded(input_ids, mask, labels)
