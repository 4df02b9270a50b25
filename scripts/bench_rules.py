"""Do rules keep their promises, fast enough?

    OMP_NUM_THREADS=1 python scripts/bench_rules.py

1. Every shipped rule on random streams: never over capacity, the same under the same seed and after
   a restore, blind to what comes later (`atommem.rules.check`). A rule that is told a later
   question is played too: it must be caught.
2. 10,000 creates into a store of 1,000, each through `WorkingMemory.apply` with its log, for every
   rule (none of them asks a model): seconds of CPU, of one thread; vectors of 384 numbers, made
   before. Twice: texts that have nothing to do with each other, and the unfavourable shape, 50
   topics of near-duplicates that have one nearest among them.

The last line is one JSON object; the exit code is 0 if and only if its "holds" is true: no broken
promise, every rule of part 2 within 2 s in both shapes.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from common import command_line, last_line

from atommem import plugins
from atommem.actions import Action
from atommem.config import MemoryConfig
from atommem.embedding.embedder import Vectors
from atommem.memory.memory import WorkingMemory
from atommem.memory.rules import Accepted, Admission, Candidate, Refused, Rule, StoreState
from atommem.rules import check
from atommem.rules.eviction import FEATURES
from atommem.tokens import ApproximateTokenizer

SECONDS = 2.0


class Given:
    """An embedder that has all vectors already: row i is that of the text that begins with i."""

    def __init__(self, rows: Vectors) -> None:
        self.id, self.dim, self._rows = "given", rows.shape[1], rows

    async def embed(self, texts: Sequence[str], kind: str) -> Vectors:
        return self._rows[[int(text.split(maxsplit=1)[0]) for text in texts]]

    async def close(self) -> None:
        return None


class Told(Rule):
    """Breaks the last promise: it is told the question that comes after the half of the stream."""

    later: ClassVar[set[str]] = set()

    def admit(self, candidate: Candidate, store: StoreState) -> Admission:
        return (
            Accepted() if self.later & set(candidate.text.split()) else Refused("nobody will ask")
        )


def promises(rules: dict[str, str], streams: int) -> dict[str, list[str]]:
    """Part 1: what is broken, by rule."""
    broken = {name: check.problems(rules[name], streams=streams) for name in rules}
    for name in plugins.names("atommem.admission"):
        broken[f"admission {name}"] = check.problems("lru", name, streams=streams)
    plain = check.play

    async def leaking(
        config: MemoryConfig, stream: Sequence[Sequence[Action]], *args: Any, **kwargs: Any
    ) -> Any:
        Told.later = set(stream[30][0].text.split())
        return await plain(config, stream, *args, **kwargs)

    check.play = leaking
    try:
        caught = check.problems(admission=f"{__name__}:Told", streams=6)
    finally:
        check.play = plain
    if not any("the future" in problem for problem in caught):
        broken["a rule that is told the future"] = ["was not caught"]
    return {name: found for name, found in broken.items() if found}


def rows_of(shape: str, count: int, dim: int, rng: np.random.Generator) -> Vectors:
    """Unit vectors: of nothing in common, or of 50 topics."""
    rows = rng.standard_normal((count, dim), dtype=np.float32)
    if shape == "topics":
        rows = (
            0.3 * rows
            + rng.standard_normal((50, dim), dtype=np.float32)[rng.integers(50, size=count)]
        )
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


async def create(rule: str, rows: Vectors, capacity: int) -> float:
    """Seconds of CPU of as many creates as there are rows."""
    config = MemoryConfig(capacity=capacity, retention=rule)
    memory = WorkingMemory(Given(rows), ApproximateTokenizer(), config)
    words = (
        "I live in Brent",
        "she is a baker",
        "we will go in May 2023 to the old town hall",
        "do you sing?",
    )
    actions = [[Action("create", f"{i} {words[i % 4]}")] for i in range(len(rows))]
    began = time.process_time()
    for step, action in enumerate(actions):
        await memory.apply(action, step)
    took = time.process_time() - began
    assert len(memory.entries()) <= capacity
    return took


def main() -> int:
    """Run both parts; print the tables and the JSON line."""
    parser = command_line(__doc__, creates=300, capacity=50, streams=1)
    parser.add_argument("--creates", type=int, default=10_000)
    parser.add_argument("--capacity", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=4, help="Of each rule in part 1.")
    parser.add_argument("--dim", type=int, default=384)
    args = parser.parse_args()
    result: dict[str, Any] = {"load_before": round(os.getloadavg()[0], 1)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "linear.json").write_text(
            json.dumps({"bias": -1.0, **dict.fromkeys(FEATURES, 0.5)})
        )
        (folder / "needs.json").write_text("{}")
        options = {
            "linear": f"(weights={folder}/linear.json)",
            "oracle": f"(needs={folder}/needs.json)",
        }
        rules = {name: name + options.get(name, "") for name in plugins.names("atommem.retention")}
        result["broken"] = promises(rules, args.streams)
        print(f"{len(rules)} retention rules; broken promises: {result['broken']}")
        seconds: dict[str, dict[str, float]] = {name: {} for name in rules}
        rng = np.random.default_rng(0)
        for shape in ("random", "topics"):
            rows = rows_of(shape, args.creates, args.dim, rng)
            for name, rule in rules.items():
                took = asyncio.run(create(rule, rows, args.capacity))
                seconds[name][shape] = round(took, 2)
        for name, each in seconds.items():
            print(f"{name:<16} {args.creates:,} creates: seconds {each}")
        result["seconds"] = seconds
    slow = [name for name, each in seconds.items() if max(each.values()) > SECONDS]
    result["slow"] = slow
    result["holds"] = not result["broken"] and not slow
    return last_line(result)


if __name__ == "__main__":
    raise SystemExit(main())
