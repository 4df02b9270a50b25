"""A stream of cases through a bank, and what is left of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from atommem.embedding.embedder import Embedder, Vectors
from atommem.memory.rules import Numbers, StoreState
from atommem.rules.banks import MemoBank
from papers.experience import Bank, Experience

HERE = __name__


class ByLabel(MemoBank):
    """Control: the same pruning, by the label alone."""

    def _utilities(self, store: StoreState) -> Numbers:
        return np.nan_to_num(store.column("outcome"))


class Newest(MemoBank):
    """Control: the same pruning, by age alone."""

    def _utilities(self, store: StoreState) -> Numbers:
        return store.column("created")


class AtRandom(MemoBank):
    """Control: the same pruning, by nothing."""

    def _utilities(self, store: StoreState) -> Numbers:
        return store.rng.random(len(store.ids))


@dataclass(frozen=True)
class Filled:
    """What is left of a stream, and why the rest is not.

    Attributes:
        kept: Places in the stream, oldest first.
        duplicates, invalid, pruned: How many were refused, and how many given up.
        prunings: How often the bank was full.
    """

    kept: list[int]
    duplicates: int = 0
    invalid: int = 0
    pruned: int = 0
    prunings: int = 0


async def fill(
    cases: Sequence[Experience],
    embedder: Embedder,
    paper: Mapping[str, Any],
    seed: int,
    pruning: str = "memobank",
    *,
    count_retrievals: bool = False,
) -> Filled:
    """Run the stream through a bank whose door is MemoBankRL's.

    Args:
        cases: With their labels as outcomes.
        embedder: Of their queries.
        paper: Settings (``papers/memobank/published.yaml``).
        seed: Of the samples at the door.
        pruning: A retention rule; empty is a bank without a limit.
        count_retrievals: Retrieve three cases before each; as published, nothing does.
    """
    options = f"similarity={paper['dedup']}, sample={paper['sample']}"
    capacity = paper["capacity"] if pruning else None
    bank = Bank(
        embedder,
        capacity=capacity,
        admission=f"memobank({options})",
        retention=pruning or "reject",
        seed=seed,
    )
    refused: list[str] = []
    pruned = prunings = 0
    for place, case in enumerate(cases):
        if count_retrievals and len(bank):
            await bank.retrieve(case.query, paper["top"])
        operations = await bank.end(replace(case, details={**case.details, "place": place}))
        refused += [
            op.reason for op in operations if op.kind == "create" and op.outcome != "applied"
        ]
        deleted = sum(op.kind == "delete" for op in operations)
        pruned, prunings = pruned + deleted, prunings + bool(deleted)
    kept = [int((record.details or {})["place"]) for record in bank.records()]
    duplicates = sum("duplicate" in reason for reason in refused)
    return Filled(kept, duplicates, len(refused) - duplicates, pruned, prunings)


def top_positives(
    queries: Vectors, vectors: Vectors, positive: Sequence[bool], kept: Sequence[int], top: int
) -> int:
    """Count positives among the queries' most similar kept cases; older cases win ties."""
    rows = np.asarray(kept)
    order = np.argsort(-(queries @ vectors[rows].T), axis=1, kind="stable")[:, :top]
    return int(np.asarray(positive)[rows[order]].sum())
