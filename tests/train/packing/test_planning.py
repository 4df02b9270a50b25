"""Balancing rows over ranks and cutting them into micro-batches."""

from __future__ import annotations

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from atommem.train.objective.rows import Row
from atommem.train.packing.micro_batch import (
    pack_rows,
    shared_prefixes,
)
from atommem.train.packing.planning import (
    balance,
    cut,
    cut_padded,
    lexicographic,
    row_costs,
)
from tests.train.toys import make_row


def random_rows(seed: int, count: int) -> list[Row]:
    """Rows over three tokens, so that they share prefixes of all lengths."""
    rng = random.Random(seed)
    ids = [[rng.choices(range(3), k=rng.randint(1, 4)) for _ in range(2)] for _ in range(count)]
    return [make_row(*both) for both in ids]


@given(st.integers(0, 10_000), st.integers(0, 12))
def test_shared_prefixes_count_packed_tokens(seed: int, count: int) -> None:
    rows = lexicographic(random_rows(seed, count))
    assert [r.ids.tolist() for r in rows] == sorted(r.ids.tolist() for r in rows)
    shared = shared_prefixes(rows)
    for index in range(1, count + 1):
        assert sum(map(len, rows[:index])) - sum(shared[:index]) == pack_rows(rows[:index]).computed


@given(st.lists(st.lists(st.floats(0.1, 50), max_size=12), min_size=1, max_size=6))
def test_balance_never_raises_the_largest_load(costs: list[list[float]]) -> None:
    owners = balance(costs)
    assert [len(rank) for rank in owners] == [len(rank) for rank in costs]
    loads = [0.0] * len(costs)
    for rank_costs, rank_owners in zip(costs, owners, strict=True):
        for cost, owner in zip(rank_costs, rank_owners, strict=True):
            loads[owner] += cost
    assert max(loads) <= max(map(sum, costs)) + 1e-9


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(3, 40), st.integers(0, 3))
def test_cut_keeps_the_budget_and_minimizes_the_largest_cost(
    seed: int, count: int, budget: int, more: int
) -> None:
    rows = lexicographic(random_rows(seed, count))
    lengths, shared = [len(row) for row in rows], shared_prefixes(rows)

    def pieces(counts: list[int]) -> list[list[Row]]:
        ends = list(itertools.accumulate(counts))
        return [rows[end - n : end] for end, n in zip(ends, counts, strict=True)]

    def cost(piece: list[Row]) -> float:
        return sum(row_costs([len(r) for r in piece], shared_prefixes(piece), 0.1))

    fewest = cut(lengths, shared, 0.1, budget)
    assert sum(fewest) == count
    for piece in pieces(fewest):
        assert len(piece) == 1 or pack_rows(piece).computed <= budget
    allowed = len(fewest) + more
    counts = cut(lengths, shared, 0.1, budget, allowed)
    assert sum(counts) == count
    assert len(counts) <= allowed
    best = min(
        max(map(cost, candidate))
        for size in range(1, min(allowed, count) + 1)
        for marks in itertools.combinations(range(1, count), size - 1)
        for candidate in [[rows[a:b] for a, b in itertools.pairwise([0, *marks, count])]]
        if all(len(piece) == 1 or pack_rows(piece).computed <= budget for piece in candidate)
    )
    assert max(map(cost, pieces(counts))) <= best * 1.011 + 1e-9


@given(st.lists(st.integers(2, 60), max_size=50), st.integers(1, 400))
def test_cut_padded_keeps_the_budget(lengths: list[int], budget: int) -> None:
    lengths = sorted(lengths, reverse=True)
    counts = cut_padded(lengths, budget)
    assert sum(counts) == len(lengths)
    start = 0
    for index, count in enumerate(counts):
        assert count >= 1
        assert count == 1 or count * lengths[start] <= budget
        # No further row would have fitted.
        assert index == len(counts) - 1 or (count + 1) * lengths[start] > budget
        start += count
