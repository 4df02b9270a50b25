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
@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(3, 40))
def test_cut_of_sorted_rows_keeps_the_budget(seed: int, count: int, budget: int) -> None:
    rows = lexicographic(random_rows(seed, count))
    lengths, shared = [len(row) for row in rows], shared_prefixes(rows)

    counts = cut(lengths, shared, 0.1, budget)
    assert sum(counts) == count
    ends = list(itertools.accumulate(counts))
    for end, size in zip(ends, counts, strict=True):
        assert size == 1 or pack_rows(rows[end - size : end]).computed <= budget


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
