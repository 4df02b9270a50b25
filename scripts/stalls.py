"""How long an event loop stands still: a heartbeat asks for its attention every millisecond."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Beats:
    """What the beats found, in seconds: how much longer than asked for each took (whatever the cause), and what of it
    the loop's own thread computed.
    """

    stalls: list[float] = field(default_factory=list)
    computing: list[float] = field(default_factory=list)

    def clear(self) -> None:
        """Begin anew."""
        self.stalls.clear()
        self.computing.clear()


@asynccontextmanager
async def heartbeat() -> AsyncIterator[Beats]:
    """Beats of this loop inside the block."""
    beats = Beats()

    async def beat() -> None:
        while True:
            before, computed = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.001)
            beats.stalls.append(time.perf_counter() - before - 0.001)
            beats.computing.append(time.thread_time() - computed)

    beating = asyncio.create_task(beat())
    try:
        yield beats
    finally:
        beating.cancel()
        with suppress(asyncio.CancelledError):
            await beating
