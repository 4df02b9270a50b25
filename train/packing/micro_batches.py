"""The rows of one update as micro-batches: shared out among ranks, the same number on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from accelerate.utils import gather_object

from atommem.train.objective.sequences import Row
from atommem.train.packing.padding import plan_micro_batches
from atommem.train.packing.planning import balance, bundles, cut, lexicographic, row_costs
from atommem.train.packing.trie import shared_prefixes


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows of one forward and backward pass on one rank.

    Attributes:
        rows: Of this rank; may be none.
        count: Rows of the rank with the most: TRL's loss gathers one value per row from all ranks.
        weight: What all ranks' rows count in the loss.
    """

    rows: list[Row]
    count: int
    weight: float


class MicroBatchPlanner:
    """Plans an update. Every rank calls `plan`; the calls are collective.

    Args:
        pair_cost: What an attended pair costs (`atommem.train.packing.planning.pair_cost`).
        token_budget: Most tokens in a micro-batch of more than one row: distinct ones with
            `prefix_sharing`, padded ones without.
        prefix_sharing: Whether micro-batches are packed as tries.
        rank: This process.
    """

    def __init__(self, pair_cost: float, token_budget: int, prefix_sharing: bool, rank: int) -> None:
        self.pair_cost = pair_cost
        self.token_budget = token_budget
        self.prefix_sharing = prefix_sharing
        self.rank = rank

    def plan(self, rows: Sequence[Row]) -> list[MicroBatch]:
        """This rank's micro-batches. A rank that is balanced with the others keeps its own rows."""
        ordered, shared = self._order(rows)
        ordered, shared = self._order(self._exchange(ordered, shared))
        lengths = [len(row) for row in ordered]
        if self.prefix_sharing:
            fewest = len(cut(lengths, shared, self.pair_cost, self.token_budget))
            most = max(gather_object([fewest]))
            counts = cut(lengths, shared, self.pair_cost, self.token_budget, most)
            counts += [0] * (most - len(counts))
        else:
            counts = plan_micro_batches(gather_object([lengths]), self.token_budget)
        ends = list(accumulate(counts))
        parts = [ordered[end - count : end] for end, count in zip(ends, counts, strict=True)]
        sizes = gather_object([[(len(part), sum(map(_loss_weight, part))) for part in parts]])
        return [
            MicroBatch(part, max(count for count, _ in ranks), sum(weight for _, weight in ranks))
            for part, *ranks in zip(parts, *sizes, strict=True)
        ]

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
        costs = gather_object([[running[end] - running[start] for start, end in zip(starts, ends, strict=True)]])
        owners = balance(costs)[self.rank]
        parts = [(owner, rows[start:end]) for owner, start, end in zip(owners, starts, ends, strict=True)]
        given = gather_object([part for part in parts if part[0] != self.rank])
        kept = [row for owner, part in parts if owner == self.rank for row in part]
        return kept + [row for owner, part in given if owner == self.rank for row in part]


def _loss_weight(row: Row) -> float:
    return row.weight * len(row.completion_ids)
