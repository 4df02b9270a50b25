"""Turns that are taken at the same time: bounded, and so are those that wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from atommem.errors import AtomMemError
from atommem.serve.serve_metrics import Metrics


class BusyError(AtomMemError):
    """There is more to do than may wait: try again later."""


class Turns:
    """Turns that are taken at the same time, and those that wait for one: bounded.

    Args:
        active: Most turns at the same time.
        waiting: Most that wait; further ones are refused.
    """

    def __init__(self, active: int, waiting: int, metrics: Metrics) -> None:
        self._slots = asyncio.Semaphore(active)
        self._most = active + waiting
        self._metrics = metrics
        self.taken = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn.

        Raises:
            BusyError: As many wait as may.
        """
        if self.taken >= self._most:
            raise BusyError("this server has as many turns waiting as it takes: try again.")
        self.taken += 1
        try:
            with self._metrics.stage("queue"):
                await self._slots.acquire()
            try:
                yield
            finally:
                self._slots.release()
        finally:
            self.taken -= 1
