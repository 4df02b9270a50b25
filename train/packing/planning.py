"""Who trains on which rows: balanced over ranks, cut into micro-batches within a token budget.

Rows are in lexicographic order of their tokens, so that neighbours share the longest prefixes: the
episodes of a group that read the same chunk lie together. A row then adds to its micro-batch only the
tokens that it does not share with the row before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atommem.train.objective.sequences import Row

TOLERANCE = 0.02
"""Ranks are balanced when the costliest exceeds the cheapest by no more than this share of the mean."""


def lexicographic(rows: Sequence[Row]) -> list[Row]:
    """`rows` in the order of their tokens."""
    # Big-endian bytes compare like the numbers do, at the speed of memcmp.
    return sorted(rows, key=lambda row: row.ids.astype(">u4").tobytes())


def pair_cost(config: Any) -> float:
    """What one attended (query, key) pair costs, in tokens.

    A token costs 2 FLOPs per weight of a layer; a pair costs ``2 * 2 * heads * head_dim`` (scores and
    values). Layers of four projections and a gated MLP are assumed.

    Args:
        config: The text config of a transformers model.
    """
    hidden, inner, query, key = widths(config)
    return 4 * query / (2 * (2 * hidden * (query + key) + 3 * hidden * inner))


def widths(config: Any) -> tuple[int, int, int, int]:
    """Of hidden states, of the MLP, and heads x head size of queries and of keys, in a transformers text config."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    head = getattr(config, "head_dim", None) or hidden // heads
    keys = getattr(config, "num_key_value_heads", None) or heads
    return (
        hidden,
        getattr(config, "intermediate_size", None) or 4 * hidden,
        heads * head,
        keys * head,
    )


def row_costs(lengths: Sequence[int], shared: Sequence[int], pair: float) -> list[float]:
    """Cost of each row next to the row before it, in tokens: its own tokens, and the pairs they attend to."""
    return [
        (length - common) + pair * (length * (length + 1) - common * (common + 1)) / 2
        for length, common in zip(lengths, shared, strict=True)
    ]


def bundles(lengths: Sequence[int], shared: Sequence[int]) -> list[int]:
    """Sizes of the runs of rows that belong together: each shares at least half with the one before it."""
    sizes: list[int] = []
    for length, common in zip(lengths, shared, strict=True):
        if sizes and 2 * common >= length:
            sizes[-1] += 1
        else:
            sizes.append(1)
    return sizes


def balance(costs: Sequence[Sequence[float]]) -> list[list[int]]:
    """Where each bundle is trained, so that all ranks cost about the same.

    Bundles stay where they are unless a move helps: again and again, the costliest rank gives the
    bundle that comes closest to half the difference to the cheapest one.

    Args:
        costs: For each rank, the costs of its bundles.

    Returns:
        For each rank, the rank that takes each of its bundles.
    """
    owners = [[rank] * len(bundle_costs) for rank, bundle_costs in enumerate(costs)]
    held = [
        [(cost, rank, i) for i, cost in enumerate(bundle_costs)]
        for rank, bundle_costs in enumerate(costs)
    ]
    loads = [sum(bundle_costs) for bundle_costs in costs]
    enough = TOLERANCE * sum(loads) / max(len(loads), 1)
    # Of rounding: two ranks whose difference is one bundle would hand it to and fro for ever.
    margin = 1e-9 * sum(loads)
    while True:
        high = max(range(len(loads)), key=lambda rank: loads[rank])
        low = min(range(len(loads)), key=lambda rank: loads[rank])
        gap = loads[high] - loads[low]
        smaller = [bundle for bundle in held[high] if bundle[0] < gap - margin]
        if gap <= enough or not smaller:
            return owners
        # Every move makes the sum of squared loads smaller, so this ends.
        bundle = min(smaller, key=lambda candidate: abs(candidate[0] - gap / 2))
        cost, home, index = bundle
        held[high].remove(bundle)
        held[low].append(bundle)
        loads[high] -= cost
        loads[low] += cost
        owners[home][index] = low


def cut(
    lengths: Sequence[int],
    shared: Sequence[int],
    pair: float,
    budget: int,
    count: int | None = None,
) -> list[int]:
    """Cut rows into micro-batches of at most `budget` unique tokens.

    Args:
        lengths: Tokens of each row, in order.
        shared: Tokens that each row shares with the row before it.
        pair: `pair_cost`.
        budget: Most unique tokens in a micro-batch of more than one row.
        count: How many there may be (at least as many as without it); unset is as few as possible.

    Returns:
        Row counts. With `count`, the costliest micro-batch is as cheap as it can be.
    """
    if count is None:
        return _greedy(lengths, shared, pair, budget, float("inf"))
    whole = row_costs(lengths, [0] * len(lengths), pair)
    low, high = max(whole, default=0.0), sum(whole)
    best = _greedy(lengths, shared, pair, budget, high)
    # For a given cost, cutting at the first row that exceeds it gives the fewest pieces: find the lowest that will do.
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        pieces = _greedy(lengths, shared, pair, budget, middle)
        if len(pieces) <= count:
            best, high = pieces, middle
        else:
            low = middle
    return best


def _greedy(
    lengths: Sequence[int], shared: Sequence[int], pair: float, budget: int, most: float
) -> list[int]:
    counts: list[int] = []
    tokens, cost = 0, 0.0
    alone = row_costs(lengths, [0] * len(lengths), pair)
    beside = row_costs(lengths, shared, pair)
    for i, (length, common) in enumerate(zip(lengths, shared, strict=True)):
        if counts and tokens + length - common <= budget and cost + beside[i] <= most:
            counts[-1] += 1
            tokens, cost = tokens + length - common, cost + beside[i]
        else:
            counts.append(1)
            tokens, cost = length, alone[i]
    return counts
