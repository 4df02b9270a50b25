"""The rows of one update as micro-batches: shared out among ranks, the same number on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from accelerate.utils import gather_object

from atommem.train.objective.sequences import Row
from atommem.train.packing.padding import fit_rows
from atommem.train.packing.planning import balance, bundles, cut, lexicographic, row_costs
from atommem.train.packing.trie import shared_prefixes


@dataclass(frozen=True, slots=True)
class MicroBatchPlanner:
    """Plans an update. Every rank calls `plan`; the calls are collective.

    Attributes:
        pair_cost: What an attended pair costs (`atommem.train.packing.planning.pair_cost`).
        token_budget: Most tokens in a micro-batch of more than one row: distinct ones with
            `prefix_sharing`, padded ones without.
        prefix_sharing: Whether micro-batches are packed as tries.
        rank: This process.
    """

    pair_cost: float
    token_budget: int
    prefix_sharing: bool
    rank: int

    def plan(self, rows: Sequence[Row]) -> list[list[Row]]:
        """The rows of each of this rank's micro-batches: as many on every rank, some of them without a row.

        A rank that is balanced with the others keeps its own rows.
        """
        ordered, shared = self._order(rows)
        ordered, shared = self._order(self._exchange(ordered, shared))
        lengths = [len(row) for row in ordered]
        if self.prefix_sharing:
            counts = cut(lengths, shared, self.pair_cost, self.token_budget)
        else:
            counts = fit_rows(lengths, self.token_budget)
        most = max(gather_object([len(counts)]))
        if self.prefix_sharing:
            counts = cut(lengths, shared, self.pair_cost, self.token_budget, most)
        ends = list(accumulate(counts + [0] * (most - len(counts))))
        return [ordered[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _order(self, rows: Sequence[Row]) -> tuple[list[Row], list[int]]:
        """Rows in the order in which they are cut, and how many tokens each shares with the one before it."""
        if self.prefix_sharing:
            ordered = lexicographic(rows)
            return ordered, shared_prefixes(ordered)
        return sorted(rows, key=len, reverse=True), [0] * len(rows)

    def _exchange(self, rows: Sequence[Row], shared: Sequence[int]) -> list[Row]:
        """Hand rows to ranks with less to do, whole bundles at a time; returns what this rank trains."""
        lengths = [len(row) for row in rows]
        ends = list(accumulate(bundles(lengths, shared)))
        starts = [0, *ends][: len(ends)]
        running = [0.0, *accumulate(row_costs(lengths, shared, self.pair_cost))]
        costs = gather_object(
            [[running[end] - running[start] for start, end in zip(starts, ends, strict=True)]]
        )
        owners = balance(costs)[self.rank]
        parts = [
            (owner, rows[start:end]) for owner, start, end in zip(owners, starts, ends, strict=True)
        ]
        given = gather_object([part for part in parts if part[0] != self.rank])
        kept = [row for owner, part in parts if owner == self.rank for row in part]
        return kept + [row for owner, part in given if owner == self.rank for row in part]
