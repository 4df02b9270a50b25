"""Do rules keep their promises, fast enough, and does a bank of 100,000 records lose nothing?

    OMP_NUM_THREADS=1 python scripts/bench_rules.py

1. Every shipped rule on random streams: never over capacity, the same under the same seed and after a restore, blind
   to what comes later (`atommem.rules.check`). A rule that is told a later question is played too: it must be caught.
2. 10,000 creates into a store of 1,000, each through `WorkingMemory.apply` with its log, for every rule (none of them
   asks a model): seconds of CPU, of one thread; vectors of 384 numbers, made before. Twice: texts that have nothing to
   do with each other, and the unfavourable shape, 50 topics of near-duplicates that have one nearest among them.
3. An experience bank of 100,000 records on disk: adding, retrieving, a sweep of every bank rule, opening it again.
4. A process that writes a bank is killed (-9) at 20 moments: nothing that it acknowledged may be missing.

The last line is one JSON object; the exit code is 0 if and only if its "holds" is true: no broken promise, every rule
of part 2 within 2 s in both shapes, nothing lost. Part 3 has no bar.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from quick import add_quick, command_line, last_line, seconds_of

from atommem import plugins
from atommem.actions import Action
from atommem.config import MemoryConfig
from atommem.embedding.embedder import Vectors
from atommem.embedding.random_vectors import RandomEmbedder
from atommem.experience import Bank, Experience
from atommem.memory.memory import WorkingMemory
from atommem.memory.rules import Accepted, Admission, Candidate, Refused, Rule, StoreState
from atommem.rough_tokens import RoughTokenizer
from atommem.rules import check
from atommem.rules.ratings import FEATURES

SECONDS = 2.0
OF_BANKS = ("failures_first", "periodic", "history", "combined", "constrained", "memobank")
WRITER = """
import asyncio, sys
from atommem.embedding.random_vectors import RandomEmbedder
from atommem.experience import Bank, Experience

async def main():
    bank = await Bank(RandomEmbedder(16), capacity=500, retention="fifo").open(sys.argv[1])
    while True:
        await bank.retrieve(f"task {bank.task}", 3)
        await bank.end(Experience(f"task {bank.task}", "x" * 3000, 1.0))
        sys.stdout.write(f"{bank.task - 1}\\n")
        sys.stdout.flush()

asyncio.run(main())
"""


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
    memory = WorkingMemory(Given(rows), RoughTokenizer(), config)
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


async def large_bank(records: int, dim: int, folder: Path) -> dict[str, Any]:
    """Part 3: milliseconds (p50), seconds for the whole."""
    rng = np.random.default_rng(0)
    embedder = Given(rows_of("random", records + 1000, dim, rng))
    path = folder / "large.jsonl"
    found: dict[str, Any] = {}
    bank = await Bank(embedder, retention="fifo", capacity=records).open(path)

    async def timed(call: Any, times: int) -> float:
        return round(
            float(np.median([await seconds_of(call(number)) for number in range(times)])) * 1e3, 3
        )

    async def add(number: int) -> None:
        await bank.end(
            Experience(
                f"{number} what is to be done", "what was done", float(number % 3 > 0), {"steps": 9}
            )
        )

    began = time.perf_counter()
    found["add_ms"] = await timed(add, records)
    found["fill_s"] = round(time.perf_counter() - began, 1)
    found["retrieve_ms"] = await timed(lambda number: bank.retrieve(f"{number} what", 6), 50)
    found["add_when_full_ms"] = await timed(lambda number: add(records + number), 50)
    bank.save_vectors()
    bank.close()
    found["file_mb"] = round(path.stat().st_size / 2**20, 1)
    for rule in OF_BANKS:
        began = time.perf_counter()
        # A sweep at the next task, which ends a period for those that have any.
        options = (
            f"(period={records + 51})" if rule in ("periodic", "combined", "constrained") else ""
        )
        bank = await Bank(embedder, retention=rule + options, capacity=records).open(path)
        opened = time.perf_counter() - began
        began = time.perf_counter()
        await bank.retrieve("1 what", 6)
        operations = await bank.end(Experience("1 again", "", 1.0))
        gone = sum(operation.kind == "delete" for operation in operations)
        found[f"{rule}_s"] = {
            "sweep": round(time.perf_counter() - began, 2),
            "gone": gone,
            "open": round(opened, 2),
        }
        bank.close()
        whole = path.read_bytes()  # the next rule finds the bank as it was
        path.write_bytes(
            whole[: whole.rstrip(b"\n").rfind(b"\n", 0, whole.rstrip(b"\n").rfind(b"\n")) + 1]
        )
    return found


def killed(times: int, folder: Path) -> dict[str, int]:
    """Part 4."""
    path, lost, told = folder / "killed.jsonl", 0, 0
    draws = random.Random(0)
    for _ in range(times):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(draws.uniform(0.0, 0.25))
        os.kill(child.pid, signal.SIGKILL)
        lines = [
            line
            for line in (first + child.stdout.read()).splitlines(keepends=True)
            if line.endswith("\n")
        ]
        child.wait()
        told += len(lines)

        async def opened() -> tuple[int, set[str]]:
            bank = await Bank(RandomEmbedder(16), capacity=500, retention="fifo").open(path)
            try:
                return bank.task - 1, {record.text for record in bank.records()}
            finally:
                bank.close()

        ended, texts = asyncio.run(opened())
        acknowledged = [int(line) for line in lines]
        lost += sum(number > ended for number in acknowledged)
        lost += sum(
            f"task {number}" not in texts for number in acknowledged if number > ended - 500
        )
    return {"kills": times, "acknowledged": told, "lost": lost}


def main() -> int:
    """Run the four parts; print the tables and the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument("--creates", type=int, default=10_000)
    parser.add_argument("--capacity", type=int, default=1000)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--streams", type=int, default=4, help="Of each rule in part 1.")
    parser.add_argument("--dim", type=int, default=384)
    add_quick(parser, creates=300, capacity=50, records=500, kills=2, streams=1)
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
        admissions = len(plugins.names("atommem.admission"))
        print(
            f"promises: {len(rules)} retention rules, {admissions} admission rules, broken: {result['broken']}"
        )
        seconds: dict[str, dict[str, float]] = {name: {} for name in rules}
        rng = np.random.default_rng(0)
        for shape in ("random", "topics"):
            rows = rows_of(shape, args.creates, args.dim, rng)
            for name, rule in rules.items():
                took = asyncio.run(create(rule, rows, args.capacity))
                seconds[name][shape] = round(took, 2)
        for name, each in seconds.items():
            print(
                f"{name:<16} {args.creates:,} creates: {each['random']:.2f} s, of topics {each['topics']:.2f} s"
            )
        result["seconds"] = seconds
        result["bank"] = asyncio.run(large_bank(args.records, args.dim, folder))
        print(f"bank of {args.records:,}: {result['bank']}")
        result["killed"] = killed(args.kills, folder)
        print(f"killed: {result['killed']}")
    slow = [name for name, each in seconds.items() if max(each.values()) > SECONDS]
    result["slow"] = slow
    result["holds"] = not result["broken"] and not slow and not result["killed"]["lost"]
    return last_line(result)


if __name__ == "__main__":
    raise SystemExit(main())
