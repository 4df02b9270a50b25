"""Time the FAISS store at 100, 1,000 and 10,000 entries, beside the store before it.

    OMP_NUM_THREADS=1 python scripts/bench_store.py [--before CHECKOUT]

Each figure is the median of several runs in milliseconds, for one whole call of a memory: `search`
(a read), `create`, `update`, `delete` (one action in `WorkingMemory.apply`, which also searches
again for the current query), and `fork`. Vectors have 384 numbers and are made by hashing, so that
embedding takes little time. The unfavourable shape is a store of equal texts, which all tie.

CHECKOUT is a working tree of the tag `before-simplification` with its environment in `.venv`; its
interpreter runs this file on the old store. The last line is JSON; "holds" is true if every call
takes at most 5 ms at 1,000 entries and 25 ms at 10,000, on a machine without other work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from atommem.actions import Action
from atommem.config import MemoryConfig
from atommem.embedding.hashing import HashingEmbedder

try:
    from atommem.memory.memory import WorkingMemory
    from atommem.tokens import ApproximateTokenizer
except ImportError:  # the tree before this store
    from atommem.rough_tokens import RoughTokenizer as ApproximateTokenizer  # type: ignore

    from atommem.memory.memory import WorkingMemory

BEFORE = Path("/work/before")
BARS = {100: 5.0, 1_000: 5.0, 10_000: 25.0}
RUNS = 15


async def filled(size: int, text: str) -> Any:
    """Return a memory of `size` entries with a current query."""
    memory = WorkingMemory(HashingEmbedder(384), ApproximateTokenizer(), MemoryConfig())
    creates = [Action("create", text.format(number=number)) for number in range(size)]
    await memory.apply([*creates, Action("read", "entry 7 of ann")], 0)
    return memory


async def median_ms(call: Callable[[int], Awaitable[Any]]) -> float:
    """Return the median time of a call, which gets the number of its run."""
    seconds = []
    for run in range(RUNS):
        started = time.perf_counter()
        await call(run)
        seconds.append(time.perf_counter() - started)
    return round(1e3 * statistics.median(seconds), 3)


async def times(size: int, text: str) -> dict[str, float]:
    """Return the time of each call on a store of `size` entries."""
    memory = await filled(size, text)

    def action(kind: str) -> Callable[[int], Awaitable[Any]]:
        return lambda run: memory.apply([Action(kind, f"{kind} of run {run}", 1)], run + 1)

    async def fork(run: int) -> Any:
        return memory.fork()

    calls = {
        "search": action("read"),
        "create": action("create"),
        "update": action("update"),
        "delete": action("delete"),
        "fork": fork,
    }
    return {name: await median_ms(call) for name, call in calls.items()}


async def measure() -> dict[str, dict[str, float]]:
    """Return the times of all sizes, and of a store of ties."""
    found = {f"{size} entries": await times(size, "entry {number} of ann") for size in BARS}
    return {**found, "1000 ties": await times(1_000, "one text")}


def run_before(checkout: Path) -> dict[str, dict[str, float]]:
    """Measure the old store with the interpreter of its checkout."""
    command = [checkout / ".venv/bin/python", Path(__file__).resolve(), "--only"]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(
        command, cwd=checkout, env=environment, check=True, capture_output=True, text=True
    )
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", type=Path, help="checkout of before-simplification")
    parser.add_argument("--only", action="store_true", help="measure this tree, print JSON only")
    arguments = parser.parse_args()
    now = asyncio.run(measure())
    if arguments.only:
        print(json.dumps(now))
        return 0
    checkout = arguments.before or (BEFORE if BEFORE.exists() else None)
    before = run_before(checkout) if checkout else {}
    for shape, figures in now.items():
        for name, value in figures.items():
            old = before.get(shape, {}).get(name)
            print(
                f"{shape:>14}  {name:<7} {value:>9} ms" + (f"  before {old:>9} ms" if old else "")
            )
    holds = all(max(now[f"{size} entries"].values()) <= bar for size, bar in BARS.items())
    print(json.dumps({"now": now, "before": before, "holds": holds}))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
