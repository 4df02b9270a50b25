"""Rows -> micro-batches of at most so many padded tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atommem.train.objective.sequences import Row


def plan_micro_batches(lengths: Sequence[Sequence[int]], token_budget: int) -> list[int]:
    """How many rows each micro-batch has, the same on every rank.

    A micro-batch costs its padded area: rows x longest row. Rows are taken from the longest to the
    shortest, so that padding stays small and running out of memory would show at once. Ranks
    have to agree, because the loss makes collective calls on tensors of one value per row; a
    rank that has run out of rows fills up (`pad_rows`).

    Args:
        lengths: For each rank, the lengths of its rows, the longest first.
        token_budget: Most padded tokens in a micro-batch of more than one row, on any rank.

    Returns:
        Row counts, each at least 1. Together they are the number of rows of the rank with the most.
    """
    counts: list[int] = []
    start, total = 0, max(map(len, lengths), default=0)
    while start < total:
        longest = max(rank[start] for rank in lengths if start < len(rank))
        counts.append(min(max(1, token_budget // longest), total - start))
        start += counts[-1]
    return counts


@dataclass(frozen=True, slots=True)
class Padded:
    """A micro-batch as arrays, in the two parts that TRL's loss takes.

    All rows end in the last column (padding is on the left), so the rectangle is as wide as the
    longest row. It is cut into a prompt and a completion part where the longest completion begins:
    shorter ones are preceded by the end of their prompt, whose weight is 0.

    Attributes:
        prompt_ids, prompt_mask: (rows, longest row - longest completion); no columns without prompts.
        completion_ids, completion_mask: (rows, longest completion). The masks are attention masks.
        weights: Like `completion_ids`; what each token counts in the loss, 0 where it is not sampled.
        logprobs: Like `completion_ids`; log-probabilities at sampling, 0 where it is not sampled.
        advantages: (rows,).
    """

    prompt_ids: npt.NDArray[np.int64]
    prompt_mask: npt.NDArray[np.int64]
    completion_ids: npt.NDArray[np.int64]
    completion_mask: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    logprobs: npt.NDArray[np.float32]
    advantages: npt.NDArray[np.float32]

    @property
    def width(self) -> int:
        """Columns of both parts."""
        return self.prompt_ids.shape[1] + self.completion_ids.shape[1]


def filler_row(pad_token_id: int) -> Row:
    """A row of one prompt and one completion token that weighs nothing."""
    return Row([pad_token_id], [pad_token_id], [0.0], episode=0, advantage=0.0, weight=0.0)


def pad_rows(rows: Sequence[Row], count: int, pad_token_id: int, prompts: bool = True) -> Padded:
    """Pad `rows` to a rectangle of `count` rows, of the completions alone without `prompts`.

    Missing ones are filled up with rows of one prompt and one completion token of weight 0: a rank
    that has run out of rows takes part in the collective calls of a forward and a backward pass,
    and adds nothing to the gradient.
    """
    rows = [*rows, *[filler_row(pad_token_id)] * (count - len(rows))]
    # At least two columns: TRL's metrics read a single one as "one value per sequence" and ignore the mask.
    length = max(2, *(len(row.completion_ids) for row in rows))
    width = max(length + 1, *(len(row) for row in rows)) if prompts else length
    token_ids = np.full((len(rows), width), pad_token_id, dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=np.int64)
    weights = np.zeros((len(rows), length), dtype=np.float32)
    logprobs = np.zeros((len(rows), length), dtype=np.float32)
    for index, row in enumerate(rows):
        tokens = row.prompt_ids + row.completion_ids if prompts else row.completion_ids
        token_ids[index, width - len(tokens) :] = tokens
        mask[index, width - len(tokens) :] = 1
        sampled = slice(length - len(row.completion_ids), None)
        weights[index, sampled] = row.weight
        logprobs[index, sampled] = row.logprobs
    return Padded(
        prompt_ids=token_ids[:, : width - length],
        prompt_mask=mask[:, : width - length],
        completion_ids=token_ids[:, width - length :],
        completion_mask=mask[:, width - length :],
        weights=weights,
        logprobs=logprobs,
        advantages=np.array([row.advantage for row in rows], dtype=np.float32),
    )
