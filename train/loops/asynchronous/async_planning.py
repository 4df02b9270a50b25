"""The samples of one update -> micro-batches. An update is closed: nothing waits for samples of the next one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import ceil

import numpy as np

from atommem.train.loops.asynchronous.updates import Sample
from atommem.train.packing.planning import cut
from atommem.train.packing.trie import shared_token_prefixes


def plan_micro_batches(
    samples: Sequence[Sample], num_processes: int, token_budget: int, pair_cost: float
) -> list[list[list[Sample]]]:
    """Share `samples` out: for each micro-batch, what each process packs into one trie.

    In lexicographic order neighbours share most; runs of it become tries within the budget, as few as
    the number of processes allows, the costliest as cheap as possible. No process is ever without a
    sample: collective calls would hang.

    Args:
        samples: All samples of the update.
        num_processes: Tries in a micro-batch.
        token_budget: Most unique tokens in a trie of more than one sample.
        pair_cost: `atommem.train.packing.planning.pair_cost` of the model.

    Returns:
        Micro-batches, none where there are no samples. Tries of similar size run at the same time.
    """
    # Big-endian bytes compare like the numbers do.
    ordered = sorted(samples, key=lambda sample: sample.input_ids.astype(">u4").tobytes())
    lengths, shared = list(map(len, ordered)), shared_token_prefixes([sample.input_ids for sample in ordered])
    fewest = len(cut(lengths, shared, pair_cost, token_budget))
    wanted = ceil(fewest / num_processes) * num_processes
    ends = list(accumulate(cut(lengths, shared, pair_cost, token_budget, wanted)))
    parts = [ordered[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    while len(parts) < wanted:
        largest = max(parts, key=len)
        if len(largest) == 1:
            parts.append([filler(samples[0].group_id)])
            continue
        middle = len(largest) // 2
        parts.remove(largest)
        parts += [largest[:middle], largest[middle:]]
    parts.sort(key=lambda part: sum(map(len, part)), reverse=True)
    return [parts[start : start + num_processes] for start in range(0, len(parts), num_processes)]


def filler(group_id: int) -> Sample:
    """A sample of advantage 0, for a process that none is left for: it adds nothing to loss and gradient."""
    return Sample(np.zeros(2, dtype=np.int32), np.zeros(1, dtype=np.float32), 0.0, group_id, 0)
