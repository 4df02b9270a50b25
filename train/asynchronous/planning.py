"""The samples of one update -> micro-batches of packed rows. An update is closed: nothing waits for the next one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from trl.experimental.async_grpo.packing import TreeRow

from train.asynchronous.updates import Sample


def plan_micro_batches(samples: Sequence[Sample], num_processes: int, token_budget: int) -> list[list[TreeRow]]:
    """Pack `samples` into tries; a micro-batch is one trie per process.

    Samples are taken in lexicographic order of their tokens, in which neighbours share most; a trie is
    full when another sample would bring it over `token_budget` unique or trained tokens. Tries of
    similar attention cost run at the same time. No process is ever without a trie: collective calls
    would hang.

    Args:
        samples: All samples of the update.
        num_processes: Tries in a micro-batch.
        token_budget: Bound of a trie of more than one sample.

    Returns:
        Micro-batches, none where there are no samples.
    """
    rows: list[TreeRow] = []
    for sample in sorted(samples, key=lambda sample: sample["input_ids"].tolist()):
        if not rows or not rows[-1].fits(sample, token_budget):
            rows.append(TreeRow())
        rows[-1].add(sample)
    while len(rows) % num_processes:
        largest = max(rows, key=lambda row: len(row.samples))
        if len(largest.samples) > 1:
            rows.remove(largest)
            middle = len(largest.samples) // 2
            rows += [_packed(largest.samples[:middle]), _packed(largest.samples[middle:])]
        else:
            rows.append(_packed([_filler(samples[0]["group_id"])]))
    rows.sort(key=lambda row: row.load, reverse=True)
    return [rows[start : start + num_processes] for start in range(0, len(rows), num_processes)]


def _packed(samples: Sequence[Sample]) -> TreeRow:
    row = TreeRow()
    for sample in samples:
        row.add(sample)
    return row


def _filler(group_id: int) -> Sample:
    """A sample of advantage 0, for a process that no sample is left for: it adds nothing to loss and gradient."""
    return {
        "input_ids": np.array([0, 0]),
        "completion_mask": np.array([0, 1]),
        "old_log_probs": np.zeros(2, dtype=np.float32),
        "advantage": 0.0,
        "group_id": group_id,
        "metrics": {},
    }
