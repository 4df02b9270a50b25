"""Shared by the parts of `scripts/gpu_check`: arguments, rows, clock, and a group of rows."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from atommem.train.objective.rows import Row


class Part:
    """A running part. Rows are written as they are found."""

    def __init__(self, *positional: str) -> None:
        parser = argparse.ArgumentParser()
        for name in positional:
            parser.add_argument(name)
        parser.add_argument("--out", type=Path, required=True)
        parser.add_argument("--tiny", action="store_true")
        self.arguments = parser.parse_args()
        self.tiny: bool = self.arguments.tiny
        self.device = torch.device("cpu" if self.tiny else "cuda")

    def add(self, what: str, *, ok: bool | None = None, **figures: Any) -> None:
        """Add a row to the table; `ok` is None for a figure that cannot be wrong."""
        with self.arguments.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"what": what, "ok": ok, "figures": figures}) + "\n")
        print(what, figures, ok, flush=True)

    @contextmanager
    def trying(self, what: str, *, ok: bool | None = False) -> Iterator[None]:
        """Turn a failure into a row and go on; its `ok` is None where it is not a fault."""
        try:
            yield
        except Exception as failure:
            traceback.print_exc()
            text = str(failure).strip().splitlines()[0][:120]
            self.add(f"{what}: {type(failure).__name__}: {text}", ok=ok)

    def seconds(self, work: Callable[[], Any], rounds: int) -> float:
        """Median wall-clock time, all of the device's work included."""
        taken = []
        for _ in range(rounds):
            self.wait()
            started = time.perf_counter()
            work()
            self.wait()
            taken.append(time.perf_counter() - started)
        return statistics.median(taken)

    def peak_gb(self, work: Callable[[], Any]) -> float:
        if self.device.type == "cpu":
            work()
            return 0.0
        self.wait()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        self.wait()
        return (torch.cuda.max_memory_allocated() - before) / 1e9

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def make_group(
    rows: int, shared: int, own: int, completion: int, vocabulary: int, seed: int = 0
) -> list[Row]:
    """Rows of one step of a group: shared tokens, then own memory and completion.

    Lengths differ by a quarter, as those of real rows do: rows of one length would need no mask.
    """
    rng = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return rng.choices(range(vocabulary), k=count)

    def about(count: int) -> int:
        return rng.randint(count * 3 // 4, count * 5 // 4)

    start = tokens(shared)
    made = []
    for _ in range(rows):
        sampled = tokens(about(completion))
        made.append(Row(start + tokens(about(own)), sampled, [0.0] * len(sampled), 1.0, 1.0))
    return made
