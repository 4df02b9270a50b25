"""Is a store of 100,000 entries fast, and does it leave the event loop to the others?

    OMP_NUM_THREADS=1 python scripts/bench_store.py

1. One memory of 100,000 entries x 384 is restored from a snapshot and `WorkingMemory.vectors`, forked and put down
   again, and then searched, updated and deleted from. An update or delete is what one operation costs: in the contents
   (what the log says) and in the vectors. A turn is a whole `WorkingMemory.apply`, in which what changed is also
   searched again.
2. The unfavourable shapes: k = 100, all scores tied, 4,000 scores that would chain, a create into a full store under
   lru, and a search right after the memory was forked.
3. 64 sessions side by side, each with a fork of the memory, read, create, update and delete for a few turns, while one
   more memory is restored. A task that sleeps for a millisecond at a time measures by how much the loop was late.

The last line is one JSON object; the exit code is 0 if and only if its "holds" is true: search p50 <= 10 ms, delete p50
<= 1 ms, and no stall over 50 ms. Times in milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from atommem.memory.shared_map import SharedMap
from quick import add_quick, command_line, last_line, seconds_of
from stalls import heartbeat

from atommem.actions import Action
from atommem.config import MemoryConfig
from atommem.embedding.embedder import Vectors
from atommem.embedding.random_vectors import RandomEmbedder
from atommem.memory.log import Contents, Entry, Operation, Snapshot, Source
from atommem.memory.memory import WorkingMemory
from atommem.memory.store import TextVectors, VectorStore, digests_of

SEARCH_P50, DELETE_P50, STALL = 10.0, 1.0, 50.0
K = 6


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """p50 and p99 in milliseconds."""
    return {f"p{q}": round(float(np.percentile(seconds, q)) * 1e3, 3) for q in (50, 99)}


def timed(call: Callable[[], Any], repeats: int) -> list[float]:
    """Seconds of each call."""
    found = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        found.append(time.perf_counter() - started)
    return found


async def searched(index: VectorStore, queries: Iterable[Vectors], k: int) -> list[float]:
    """Seconds of each search."""
    return [await seconds_of(index.find(query, k)) for query in queries]


def unit_rows(count: int, dim: int, rng: np.random.Generator) -> Vectors:
    """Random unit vectors, shape (count, dim)."""
    rows = rng.standard_normal((count, dim), dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


class Bench:
    """The parts of the bench over one large memory; figures gather in `result`."""

    def __init__(self, entries: int, dim: int, seed: int) -> None:
        self.dim = dim
        self.rng = np.random.default_rng(seed)
        self.embedder = RandomEmbedder(dim)
        self.config = MemoryConfig(retrieve_k=K)
        self.rows = unit_rows(entries, dim, self.rng)
        texts = [f"entry {number}" for number in range(1, entries + 1)]
        self.vectors = TextVectors(self.embedder.id, digests_of(texts, "entry"), self.rows)
        numbered = enumerate(texts, start=1)
        held = SharedMap(
            (number, Entry(number, text, 0, 0, source=Source(0))) for number, text in numbered
        )
        self.snapshot = Snapshot(
            self.embedder.id, Contents(held, newest_id=entries, position=entries)
        )
        self.result: dict[str, Any] = {
            "entries": entries,
            "dim": dim,
            "load_before": round(os.getloadavg()[0], 1),
        }

    def note(self, name: str, seconds: Sequence[float]) -> None:
        """Keep and print the percentiles of one measurement."""
        self.result[name] = percentiles(seconds)
        print(
            f"{name:<34}{self.result[name]['p50']:>10.3f}{self.result[name]['p99']:>10.3f}",
            flush=True,
        )

    async def restored(self) -> WorkingMemory:
        """The memory, from the snapshot and its vectors."""
        tokenizer: Any = None  # no text here is so long that it would be measured
        return await WorkingMemory(self.embedder, tokenizer, self.config).restore(
            self.snapshot, vectors=self.vectors
        )

    async def alone(self, repeats: int) -> WorkingMemory:
        """Part 1."""
        self.note("restore", [await seconds_of(self.restored()) for _ in range(5)])
        memory = await self.restored()
        self.note("fork", timed(memory.fork, 20))
        self.note("snapshot", timed(memory.snapshot, 20))
        text = json.dumps(self.snapshot.to_json())
        self.note("snapshot from JSON", timed(lambda: Snapshot.from_json(json.loads(text)), 3))
        contents, index = memory._state.contents, memory._state.index
        queries = unit_rows(repeats, self.dim, self.rng)
        self.note("search", await searched(index, queries, K))
        scores = np.empty(len(index), dtype=np.float32)
        whole = len(index._blocks)
        self.note(
            "its products, in one thread",
            timed(lambda: index._score(queries[0], scores, 0, whole), repeats),
        )
        chosen = iter(self.rng.permutation(np.fromiter(contents.entries, dtype=np.int64)).tolist())

        def update() -> None:
            entry = contents.entries[next(chosen)]
            contents.apply(
                Operation(1, "update", entry_id=entry.id, before=entry.text, after="other")
            )
            index.put(entry.id, queries[0])

        def delete() -> None:
            entry = contents.entries[next(chosen)]
            contents.apply(Operation(1, "delete", entry_id=entry.id, before=entry.text))
            index.remove(entry.id)

        self.note("update", timed(update, repeats))
        self.note("delete", timed(delete, repeats))
        turns: dict[str, list[float]] = {"turn: read": [], "turn: update": [], "turn: delete": []}
        for step in range(1, repeats // 4):
            for name, action in zip(turns, self.actions(step), strict=False):
                turns[name].append(await seconds_of(memory.apply([action], step)))
        for name, seconds in turns.items():
            self.note(name, seconds)
        return memory

    def actions(self, step: int, session: int = 0) -> list[Action]:
        """A read, an update, a delete and a create, in this order."""
        name = f"{session} at {step}"
        return [
            Action("read", f"query {name}"),
            Action("update", f"update {name}", 1),
            Action("delete", handle=2),
            Action("create", f"create {name}"),
        ]

    async def unfavourable(self, memory: WorkingMemory, repeats: int) -> None:
        """Part 2."""
        queries = unit_rows(repeats, self.dim, self.rng)
        self.note("search, k = 100", await searched(memory._state.index, queries, 100))
        tied, chained = VectorStore(self.dim), VectorStore(self.dim)
        count = len(self.rows)
        numbers = self.rng.permutation(count) + 1
        tied.add(numbers, np.repeat(queries[:1], count, axis=0))
        self.note("search, all tied, k = 6", await searched(tied, [queries[0]] * repeats, K))
        self.note("search, all tied, k = 100", await searched(tied, [queries[0]] * repeats, 100))
        del tied
        # Cosines 0.5, 0.5 + 5e-7, ... to the first axis for 4,000 rows, the others below.
        rows = np.zeros((count, self.dim), dtype=np.float64)
        rows[:, 0] = 0.4
        rows[:4000, 0] = 0.5 + 5e-7 * np.arange(4000)
        rows[:, 1] = np.sqrt(1 - rows[:, 0] ** 2)
        chained.add(np.arange(1, count + 1), rows.astype(np.float32))
        axis = np.eye(1, self.dim, dtype=np.float32)[0]
        self.note(
            "search, a chain of 4,000, k = 100", await searched(chained, [axis] * repeats, 100)
        )
        self.result["best of the chain"] = round(chained.search(axis, 1)[0][1], 5)
        del chained, rows
        forked = [
            await seconds_of(memory.fork()._state.index.find(query, K)) for query in queries[:20]
        ]
        self.note("search of a fresh fork", forked)
        self.config = MemoryConfig(retrieve_k=K, capacity=count, retention="lru")
        full = await self.restored()
        creates = [
            await seconds_of(full.apply([Action("create", f"create {step}")], step))
            for step in range(20)
        ]
        self.note("turn: create into a full lru store", creates)

    async def together(self, memory: WorkingMemory, sessions: int, turns: int) -> None:
        """Part 3."""
        seconds: list[float] = []

        async def session(number: int, own: WorkingMemory) -> None:
            turning = [
                own.apply(self.actions(step, number), step) for step in range(1000, 1000 + turns)
            ]
            seconds.extend([await seconds_of(turn) for turn in turning])

        own = [memory.fork() for _ in range(sessions)]
        async with heartbeat() as beats:
            await asyncio.sleep(0.05)
            sessions_turning = (session(number, each) for number, each in enumerate(own))
            took = await seconds_of(asyncio.gather(*sessions_turning, self.restored()))
            await asyncio.sleep(0.002)  # the beat that the last turn held up
        self.note(f"turn of {sessions} side by side", seconds)
        self.result |= {
            "sessions": sessions,
            "turns_per_second": round(len(seconds) / took, 1),
            "largest_stall": round(max(beats.stalls) * 1e3, 1),
            "stall_p99": round(float(np.percentile(beats.stalls, 99)) * 1e3, 1),
        }


def main() -> int:
    """Run the three parts; print the table and the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument(
        "--repeats", type=int, default=200, help="Searches, updates, deletes of each measurement."
    )
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--turns", type=int, default=4, help="Of each session.")
    parser.add_argument("--seed", type=int, default=0)
    add_quick(parser, entries=5000, repeats=10, sessions=4, turns=1)
    args = parser.parse_args()
    random.seed(args.seed)
    print(f"{'milliseconds':<34}{'p50':>10}{'p99':>10}")

    async def run() -> dict[str, Any]:
        bench = Bench(args.entries, args.dim, args.seed)
        memory = await bench.alone(args.repeats)
        await bench.together(memory, args.sessions, args.turns)
        await bench.unfavourable(memory, args.repeats // 2)
        return bench.result

    result = asyncio.run(run())
    result["holds"] = (
        result["search"]["p50"] <= SEARCH_P50
        and result["delete"]["p50"] <= DELETE_P50
        and result["largest_stall"] <= STALL
    )
    return last_line(result)


if __name__ == "__main__":
    raise SystemExit(main())
