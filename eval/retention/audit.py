"""What is in a memory that has grown: doubles, contradictions, what was never shown, what each rule would drop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from atommem.embedding.embedder import Embedder, Vectors
from atommem.errors import ConfigError
from atommem.eval.retention.stores import Store
from atommem.memory.log import Entry, Source
from atommem.memory.rules import Candidate, StoreState, make_rule
from atommem.memory.store import Ids, VectorStore

_AT_ONCE = 256
CLOSE = 0.6
"""Pairs are asked about for contradictions from this cosine on, up to that of doubles."""


Contradicts = Callable[[str, str], Awaitable[bool | None]]
"""Whether two texts of one memory cannot both be true; None where that is not known."""


@dataclass
class Audit:
    """What was found, by ids of the store.

    Attributes:
        entries: How many there are.
        doubles: Groups of near-duplicates, oldest first in each; all but one of a group could go.
        never_shown: Ids; None where the store does not say what was shown.
        contradictions: Pairs, older first; None without a judge.
        asked: Pairs that the judge was asked about, and those of them that it did not judge.
        dropped: For each rule the ids that it would give up at the budget, in its order.
    """

    entries: int
    doubles: list[list[int]]
    never_shown: list[int] | None
    contradictions: list[tuple[int, int]] | None = None
    asked: tuple[int, int] = (0, 0)
    dropped: dict[str, list[int]] = field(default_factory=dict)


async def audit(
    store: Store,
    embedder: Embedder,
    *,
    same: float = 0.95,
    budget: int | None = None,
    rules: Sequence[str] = (),
    judge: Contradicts | None = None,
    most_pairs: int = 200,
) -> Audit:
    """Look at a store; nothing of it is changed.

    Args:
        same: Entries with a higher cosine are doubles.
        budget: Entries that may stay; what each of `rules` would give up to get there is reported.
        rules: Retention rules by name, with options.
        judge: Asked about the `most_pairs` most similar pairs that are no doubles.

    Raises:
        ConfigError: There is no such rule, or a rule gives up nothing.
        OutageError: The embedder or the judge is out of reach.
    """
    texts = [entry.text for entry in store.entries]
    parts = [
        await embedder.embed(texts[at : at + _AT_ONCE], "entry")
        for at in range(0, len(texts), _AT_ONCE)
    ]
    rows = np.concatenate(parts) if parts else np.zeros((0, embedder.dim), np.float32)
    ids = [entry.id for entry in store.entries]
    groups, close = _compared(rows, same, most_pairs if judge else 0)
    found = Audit(
        len(ids),
        [[ids[place] for place in group] for group in groups],
        [entry.id for entry in store.entries if not entry.shown] if store.uses_known else None,
    )
    if judge is not None:
        said = await asyncio.gather(*(judge(texts[a], texts[b]) for a, b in close))
        found.contradictions = [
            (ids[a], ids[b]) for (a, b), yes in zip(close, said, strict=True) if yes
        ]
        found.asked = (len(close), sum(answer is None for answer in said))
    for rule in rules if budget is not None else ():
        found.dropped[rule] = dropped(store.entries, rows, rule, budget or 0)
    return found


def dropped(entries: Sequence[Entry], rows: Vectors, rule: str, budget: int) -> list[int]:
    """The ids that a rule gives up, one after the other, until `budget` entries are left.

    A rule that rates texts when they are written is asked about each against those before it. The last entry stands for
    the new one that a rule is asked about: rules that would refuse it (``reject``) drop the newest.
    """
    retention = make_rule("retention", rule)
    held: dict[int, Entry] = {}
    store = VectorStore(rows.shape[1])
    step = max((entry.updated for entry in entries), default=0) + 1

    def seen() -> StoreState:
        return StoreState(held, store, step, budget, (0, len(held)))

    def candidate(entry: Entry, vector: Vectors) -> Candidate:
        source = entry.source or Source(entry.created)
        return Candidate(
            entry.text, vector, source, entry.score, outcome=entry.outcome, details=entry.details
        )

    for entry, vector in zip(entries, rows, strict=True):
        rating = retention.rate(candidate(entry, vector), seen())
        held[entry.id] = replace(entry, score=entry.score if rating is None else float(rating))
        store.update({entry.id: vector})
    gone: list[int] = []
    while len(held) > max(budget, 1):
        newest = max(held)
        eviction = retention.evict(candidate(held[newest], store.rows([newest])[0]), seen())
        chosen = newest if eviction.entry_id is None else eviction.entry_id
        if chosen not in held:
            raise ConfigError(
                f"retention:{rule} gives up entry {chosen}, which is not there: mend the rule."
            )
        gone.append(chosen)
        del held[chosen]
        store.update({chosen: None})
    return gone


def _compared(
    rows: Vectors, same: float, most: int
) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """Groups of places that hang together by cosines over `same`, oldest first, and the `most` closest other pairs.

    A block at a time: a store that is full of one text has as many pairs as there is no room for.
    """
    root = np.arange(len(rows))
    close = np.zeros((0, 2), dtype=np.int64)
    cosines_of = np.zeros(0, dtype=np.float32)
    for first in range(0, len(rows), _AT_ONCE):
        block = rows[first : first + _AT_ONCE]
        cosines = block @ rows[: first + len(block)].T
        apart = np.tri(len(block), first + len(block), first - 1, dtype=bool)
        cosines[~apart] = -2  # each pair once, and none with itself
        doubles = cosines > same
        for row in np.flatnonzero(doubles.any(axis=1)).tolist():
            places = np.flatnonzero(doubles[row])
            tops = _tops(root, places)
            root[tops] = root[places] = root[first + row] = tops.min()
        if most:
            found = np.argwhere((cosines > CLOSE) & ~doubles)
            cosines_of = np.concatenate([cosines_of, cosines[found[:, 0], found[:, 1]]])
            close = np.concatenate([close, found[:, ::-1] + [0, first]])
            closest = np.argsort(-cosines_of, kind="stable")[:most]
            close, cosines_of = close[closest], cosines_of[closest]
    root = _tops(root, root)
    order = np.argsort(root, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(root[order])) + 1)
    pairs = [(older, newer) for older, newer in close.tolist()]
    return [group.tolist() for group in groups if len(group) > 1], pairs


def _tops(root: Ids, places: Ids) -> Ids:
    """The roots of the trees that some places are in."""
    tops = root[places]
    while not np.array_equal(above := root[tops], tops):
        tops = above
    return tops
