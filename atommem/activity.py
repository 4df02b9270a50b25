"""The time that concurrent episodes spend waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ActivityClock:
    """Measure for how long at least one activity of a kind was going on.

    A second with 200 pending requests counts as one, so that times are shares of the wall clock.
    Times of different kinds may overlap. For one event loop.

    Args:
        now: A monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._running: dict[str, int] = {}
        self._since: dict[str, float] = {}
        self._total: dict[str, float] = {}

    @contextmanager
    def busy(self, kind: str) -> Iterator[None]:
        """Count the time of the block for `kind`."""
        if not self._running.get(kind):
            self._since[kind] = self._now()
        self._running[kind] = self._running.get(kind, 0) + 1
        try:
            yield
        finally:
            self._running[kind] -= 1
            if not self._running[kind]:
                self._add(kind, self._now())

    def take(self) -> dict[str, float]:
        """Return the seconds of each kind since the last call."""
        now = self._now()
        for kind, running in self._running.items():
            if running:
                self._add(kind, now)
                self._since[kind] = now
        total, self._total = self._total, {}
        return total

    def _add(self, kind: str, until: float) -> None:
        self._total[kind] = self._total.get(kind, 0.0) + until - self._since[kind]
