"""How fast is a memory with many entries, and does it hold up other episodes?

    OMP_NUM_THREADS=1 python scripts/bench_store.py [--entries 100 1000 10000] [--dim 384]

A memory is filled with entries (random vectors). Then are timed, in milliseconds (p50, p99): a
whole `WorkingMemory.apply` of a read, an update, a delete and a create, each with the retrieval
after it; a fork; a create into a full store under lru. Last, 64 forks take turns side by side, and
a task that sleeps a millisecond at a time measures how long the event loop stands still.

The bar, with 1,000 entries (the paper's episodes have 20 to 800): p50 of every turn and of a fork
at most 5 ms.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from common import last_line, percentiles, read_options

from atommem.actions import Action
from atommem.config import MemoryConfig
from atommem.embedding.embedder import RandomEmbedder
from atommem.memory.memory import WorkingMemory
from atommem.tokens import ApproximateTokenizer

BAR_MS, BAR_ENTRIES = 5.0, 1000


async def timed(call: Callable[[int], Any], repeats: int) -> list[float]:
    seconds = []
    for number in range(repeats):
        started = time.perf_counter()
        found = call(number)
        if asyncio.iscoroutine(found):
            await found
        seconds.append(time.perf_counter() - started)
    return seconds


async def filled(entries: int, dim: int, **settings: Any) -> WorkingMemory:
    config = MemoryConfig(retrieve_k=6, **settings)
    memory = WorkingMemory(RandomEmbedder(dim), ApproximateTokenizer(), config)
    for start in range(0, entries, 500):
        numbers = range(start, min(entries, start + 500))
        await memory.apply([Action("create", f"entry {number}") for number in numbers], 0)
    await memory.apply([Action("read", "entry")], 0)
    return memory


async def largest_stall(memories: list[WorkingMemory], turns: int) -> float:
    """Milliseconds that the event loop stood still while all memories were at work."""
    stalls: list[float] = []

    async def beat() -> None:
        while True:
            started = time.perf_counter()
            await asyncio.sleep(0.001)
            stalls.append(time.perf_counter() - started - 0.001)

    async def work(name: int, memory: WorkingMemory) -> None:
        for step in range(1, turns + 1):
            created = Action("create", f"{name} created at {step}")
            await memory.apply([Action("read", f"{name} asks at {step}"), created], step)

    beating = asyncio.create_task(beat())
    await asyncio.gather(*(work(number, memory) for number, memory in enumerate(memories)))
    await asyncio.sleep(0.002)
    beating.cancel()
    return round(max(stalls) * 1e3, 1)


async def measure(entries: int, dim: int, repeats: int, sessions: int) -> dict[str, Any]:
    memory = await filled(entries, dim)
    actions: dict[str, Callable[[int], Action]] = {
        "read": lambda step: Action("read", f"query {step}"),
        "update": lambda step: Action("update", f"text {step}", 1),
        "delete": lambda step: Action("delete", handle=1),
        "create": lambda step: Action("create", f"text {step} created"),
    }
    found: dict[str, Any] = {}
    for name, make in actions.items():
        seconds = await timed(lambda step, make=make: memory.apply([make(step)], 1), repeats)  # type: ignore[misc]
        found[name] = percentiles(seconds, 50, 99)
    found["fork"] = percentiles(await timed(lambda number: memory.fork(), repeats), 50, 99)
    full = await filled(entries, dim, capacity=entries, retention="lru")
    create = actions["create"]
    seconds = await timed(lambda step: full.apply([create(step)], 1), repeats)
    found["create into a full store"] = percentiles(seconds, 50, 99)
    forks = [memory.fork() for _ in range(sessions)]
    found["largest stall"] = await largest_stall(forks, 4)
    return found


def main() -> int:
    sizes = {"entries": ([100, 1000, 10_000], [50]), "repeats": (200, 5), "sessions": (64, 2)}
    options = read_options(__doc__, **sizes, dim=384)
    result: dict[int, dict[str, Any]] = {}
    for entries in options.entries:
        work = measure(entries, options.dim, options.repeats, options.sessions)
        result[entries] = asyncio.run(work)
        print(f"{entries:>7} entries: {result[entries]}", flush=True)
    bars = [part for part in result.get(BAR_ENTRIES, {}).values() if isinstance(part, dict)]
    holds = options.quick or all(part["p50_ms"] <= BAR_MS for part in bars)
    return last_line({"bench": "store", "dim": options.dim, "entries": result, "holds": holds})


if __name__ == "__main__":
    raise SystemExit(main())
