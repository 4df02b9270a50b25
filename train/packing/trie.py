"""Rows that share prefixes -> one row of unique tokens (a trie), laid out as TRL's `TreeRow` does.

`TreeRow` builds it token by token in Python. Here nothing is done by token: in lexicographic order every row shares a
prefix with the row before it and adds the rest, so that the trie in pre-order is these rests, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from atommem.train.objective.sequences import Row
from atommem.train.packing.padding import IGNORED, MicroBatch
from atommem.train.packing.tree import Tree


def pack_rows(rows: Sequence[Row]) -> MicroBatch:
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
    ids = np.concatenate(
        [row.ids[common:] for row, common in zip(rows, shared, strict=True)]
    ).astype(np.int64)
    depths = np.concatenate(
        [np.arange(common, len(row)) for row, common in zip(rows, shared, strict=True)]
    )
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
