"""How many threads torch should have while a tiny model is trained: measured, since nothing else says it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import TrainerCallback

_COUNTS = (1, 2, 4)
_TRIED, _EVERY = 10, 200


class Threads:
    """Gives torch, update by update, the number of threads that was fastest.

    Two threads make an update in .7 of the time where two cores are free, and in up to four times of it where another
    process has one of them: threads spin while they wait for each other. So each number is tried for ten updates, and
    again after every two hundred. What is computed is the same with any.

    Args:
        most: Of threads.
        clock: Seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._counts = [count for count in _COUNTS if count <= max(1, most)]
        self._clock = clock
        self._updates = 0
        self._began: list[float] = []

    def update(self) -> None:
        """An update begins."""
        tried, place = divmod(self._updates % _EVERY, _TRIED)
        if place == 0 and tried <= len(self._counts):
            self._began = [*self._began, self._clock()] if tried else [self._clock()]
            torch.set_num_threads(self._counts[tried] if tried < len(self._counts) else self._fastest())
        self._updates += 1

    def _fastest(self) -> int:
        seconds = [end - begin for begin, end in zip(self._began, self._began[1:], strict=False)]
        return self._counts[seconds.index(min(seconds))]


class ThreadsCallback(TrainerCallback):
    """`Threads` for a trainer."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    def on_step_begin(self, *arguments: Any, **others: Any) -> None:
        """An update begins."""
        self._threads.update()
