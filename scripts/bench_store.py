"""Is the store exact, and does every episode keep its own?

    python scripts/bench_store.py

1. 20,000 random operations, spread over all retention rules, several capacities and two kinds of
   vectors, against an oracle (a dictionary, and NumPy in float64): contents, ids, evictions and
   top-k have to be identical after every one. ``exact`` vectors have inner products without any
   rounding, and ties at every rank; ``blurred`` ones are unit vectors whose last bits differ from
   one use of the same text to the next, as a batched model's do.
2. 256 episodes at the same time, all with nearly the same texts and one shared embedder: each has to
   see what it sees when it runs alone, and nothing of the others.

The last line is one JSON object; the exit code is 0 if and only if its "holds" is true.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from atommem.actions import Action
from atommem.config import RETENTION_RULES, MemoryConfig
from atommem.embedding.embedder import TextKind, Vectors
from atommem.embedding.hashing import HashingEmbedder
from atommem.episode import Entry, MemoryView, Operation
from atommem.memory.operations import replay
from atommem.memory.retention import make_retention
from atommem.memory.store import Store
from atommem.memory.working import WorkingMemory

CAPACITIES = (None, 1, 7, 50)
DIM = 64
POOL = 200


class ExactVectors:
    """16 of 64 places hold 1/4 or -1/4: norm 1, and inner products are multiples of 1/16."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def stored(self) -> tuple[Vectors, npt.NDArray[np.float64]]:
        """A vector for the store, and what it is for the oracle."""
        vector = np.zeros(DIM)
        vector[self.rng.choice(DIM, 16, replace=False)] = self.rng.choice([-0.25, 0.25], 16)
        return vector.astype(np.float32), vector

    def query(self) -> tuple[Vectors, npt.NDArray[np.float64]]:
        """The same for a query."""
        return self.stored()


class BlurredVectors:
    """200 random unit vectors; every use of one is off by about 1e-7.

    The oracle knows them unblurred. Queries for which two different ones score within 1e-5 are drawn
    again: there, float32 cannot tell which is nearer.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.pool = np.stack([self._unit() for _ in range(POOL)])

    def _unit(self) -> npt.NDArray[np.float64]:
        vector = self.rng.standard_normal(DIM)
        return vector / np.linalg.norm(vector)

    def stored(self) -> tuple[Vectors, npt.NDArray[np.float64]]:
        """A vector for the store, and what it is for the oracle."""
        vector = self.pool[self.rng.integers(POOL)]
        return (vector + self.rng.uniform(-1e-8, 1e-8, DIM)).astype(np.float32), vector

    def query(self) -> tuple[Vectors, npt.NDArray[np.float64]]:
        """The same for a query: any direction, or that of a text that may be in the store."""
        while True:
            vector = self._unit() if self.rng.random() < 0.5 else self.pool[self.rng.integers(POOL)]
            if np.diff(np.sort(self.pool @ vector)).min() > 1e-5:
                return vector.astype(np.float32), vector


@dataclass
class Oracle:
    """What a store should do, in the plainest way."""

    rule: str
    capacity: int | None
    held: dict[int, tuple[Entry, npt.NDArray[np.float64]]] = field(default_factory=dict)
    newest: int = 0

    def create(self, text: str, vector: npt.NDArray[np.float64], step: int) -> tuple[int | None, int | None]:
        """The new id (None: rejected) and the evicted one."""
        evicted = None
        if self.capacity is not None and len(self.held) == self.capacity:
            if self.rule == "reject":
                return None, None
            age = {key: key if self.rule == "fifo" else entry.used for key, (entry, _) in self.held.items()}
            evicted = min(key for key in age if age[key] == min(age.values()))
            del self.held[evicted]
        self.newest += 1
        self.held[self.newest] = Entry(self.newest, text, step, step, step), vector
        return self.newest, evicted

    def search(self, query: npt.NDArray[np.float64], k: int) -> list[int]:
        """Ids by score, then age."""
        scores = {key: round(float(vector @ query), 12) for key, (_, vector) in self.held.items()}
        return sorted(scores, key=lambda key: (-scores[key], key))[:k]


def against_the_oracle(
    operations: int, rule: str, capacity: int | None, vectors: ExactVectors | BlurredVectors, rng: random.Random
) -> tuple[Counter[str], list[str]]:
    """Apply random operations to a store and an oracle; count them, and describe every difference."""
    store, oracle = Store(DIM, capacity, make_retention(rule)), Oracle(rule, capacity)
    done: Counter[str] = Counter()
    wrong: list[str] = []

    def compare(what: str, found: object, expected: object) -> None:
        if found != expected:
            wrong.append(f"{rule}, capacity {capacity}, {what}: {found} instead of {expected}")

    for step in itertools.count():
        if done.total() == operations:
            break
        name = rng.choices(("create", "search", "update", "delete", "use"), (8, 6, 3, 2, 1))[0]
        chosen = rng.choice(list(oracle.held)) if oracle.held else None
        text = f"text {step}"
        if name == "create":
            vector, known = vectors.stored()
            created = store.create(text, vector, step)
            ids = tuple(None if entry is None else entry.id for entry in created)
            compare("create", ids, oracle.create(text, known, step))
        elif name == "search":
            query, known = vectors.query()
            k = rng.choice((1, 2, 6, 20, 1000))
            found = store.search(query, k)
            compare("search", [entry.id for entry, _ in found], oracle.search(known, k))
            scores = np.array([float(oracle.held[entry.id][1] @ known) for entry, _ in found])
            compare("scores", bool(np.allclose([score for _, score in found], scores, atol=1e-5)), True)
        elif chosen is None:
            continue
        elif name == "update":
            vector, known = vectors.stored()
            entry = oracle.held[chosen][0]
            compare("update", store.update(chosen, text, vector, step), entry.text)
            entry.text, entry.updated = text, step
            oracle.held[chosen] = entry, known
        elif name == "delete":
            compare("delete", store.delete(chosen), oracle.held.pop(chosen)[0])
        else:
            store.mark_used([chosen], step)
            oracle.held[chosen][0].used = step
        done[name] += 1
        compare("contents", store.entries(), [entry for entry, _ in oracle.held.values()])
    return done, wrong


class SlowEmbedder(HashingEmbedder):
    """Gives way to other episodes a random number of times before it embeds."""

    def __init__(self, dim: int, rng: random.Random) -> None:
        super().__init__(dim)
        self._rng = rng
        self._waiting = 0
        self.most_waiting = 0

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """As `HashingEmbedder.embed`."""
        self._waiting += 1
        self.most_waiting = max(self.most_waiting, self._waiting)
        for _ in range(self._rng.randrange(1, 6)):
            await asyncio.sleep(0)
        self._waiting -= 1
        return await super().embed(texts, kind)


def random_actions(rng: random.Random, marker: str, step: int) -> list[Action]:
    """One completion's memory actions; the texts of two episodes differ in `marker` only."""
    actions = []
    for number in range(rng.randrange(1, 7)):
        kind = rng.choices(
            ("create", "read", "update", "delete", "scratchpad"),
            (6, 2, 3, 1, 1),
        )[0]
        handle = rng.randrange(1, 8) if kind in ("update", "delete") else None
        text = "" if kind == "delete" else f"fact {rng.randrange(9)} of {marker} at {step} {number}"
        actions.append(Action(kind, text, handle))
    return actions


@dataclass
class Seen:
    """All that one episode did and saw."""

    operations: list[Operation] = field(default_factory=list)
    views: list[MemoryView] = field(default_factory=list)
    foreign: int = 0
    replays: bool = True


async def episode(number: int, steps: int, embedder: HashingEmbedder) -> Seen:
    """Use a memory for `steps` steps; what is done depends on `number` alone."""
    rng = random.Random(number)
    marker = f"episode{number:04d}"
    config = MemoryConfig(
        capacity=CAPACITIES[number % 4], retention=RETENTION_RULES[number % 3], scratchpad_tokens=4096
    )
    tokenizer: Any = None  # scratchpads of so few bytes are not measured
    memory = WorkingMemory(embedder, tokenizer, config)
    seen = Seen()
    for step in range(steps):
        seen.operations.extend(await memory.apply(random_actions(rng, marker, step), step))
        view = memory.view()
        seen.views.append(view)
        texts = [item.text for item in view.retrieved] + [entry.text for entry in memory.store.entries()]
        texts += [view.scratchpad] if view.scratchpad else []
        seen.foreign += sum(marker not in text for text in texts)
    contents = replay(seen.operations)
    seen.replays = (
        list(contents.entries.items()) == [(entry.id, entry.text) for entry in memory.store.entries()]
        and contents.scratchpad == memory.scratchpad
    )
    return seen


async def isolation(episodes: int, steps: int, rng: random.Random) -> dict[str, int]:
    """Run all episodes at once, then each alone, and count what differs."""
    shared = SlowEmbedder(DIM, rng)
    together = await asyncio.gather(*(episode(number, steps, shared) for number in range(episodes)))
    alone = [await episode(number, steps, HashingEmbedder(DIM)) for number in range(episodes)]
    return {
        "episodes": episodes,
        "operations_of_episodes": sum(len(seen.operations) for seen in together),
        "shown_entries": sum(len(view.retrieved) for seen in together for view in seen.views),
        "most_embedding_at_once": shared.most_waiting,
        "foreign_texts": sum(seen.foreign for seen in together),
        "differ_from_alone": sum(
            (one.operations, one.views) != (other.operations, other.views)
            for one, other in zip(together, alone, strict=True)
        ),
        "do_not_replay": sum(not seen.replays for seen in together),
    }


def main() -> int:
    """Run both parts, print the tables and the JSON line."""
    parser = argparse.ArgumentParser(description="Check the store against an oracle, and episodes against each other.")
    parser.add_argument("--operations", type=int, default=20_000, help="Random operations in all.")
    parser.add_argument("--episodes", type=int, default=256, help="Episodes at the same time.")
    parser.add_argument("--steps", type=int, default=12, help="Steps of an episode.")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    began = time.perf_counter()
    rng = random.Random(args.seed)

    kinds: tuple[type[ExactVectors] | type[BlurredVectors], ...] = (ExactVectors, BlurredVectors)
    cases = list(itertools.product(RETENTION_RULES, CAPACITIES, kinds))
    done: Counter[str] = Counter()
    wrong: list[str] = []
    print(f"{'rule':<8}{'capacity':>9}  {'vectors':<15}{'operations':>11}{'searches':>9}{'differences':>12}")
    for index, (rule, capacity, kind) in enumerate(cases):
        share = (args.operations - done.total()) // (len(cases) - index)
        vectors = kind(np.random.default_rng((args.seed, index)))
        counted, differences = against_the_oracle(share, rule, capacity, vectors, rng)
        done += counted
        wrong += differences
        print(
            f"{rule:<8}{capacity or 'none':>9}  {kind.__name__:<15}{counted.total():>11}"
            f"{counted['search']:>9}{len(differences):>12}"
        )
    for line in wrong[:20]:
        print(line)

    apart = asyncio.run(isolation(args.episodes, args.steps, rng))
    print()
    for name, value in apart.items():
        print(f"{name:<26}{value:>8}")

    result = {
        "operations": done.total(),
        "searches": done["search"],
        "differences": len(wrong),
        **apart,
        "seconds": round(time.perf_counter() - began, 1),
        "holds": not wrong
        and not (apart["foreign_texts"] or apart["differ_from_alone"] or apart["do_not_replay"])
        and apart["most_embedding_at_once"] > args.episodes // 2,
    }
    print(json.dumps(result))
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
