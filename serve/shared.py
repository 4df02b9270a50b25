"""What all conversations of a server share: the policy, the log, and turns in bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from atommem.errors import AtomMemError
from atommem.serve.conversation_log import ConversationLog
from atommem.serve.serve_metrics import Metrics
from atommem.serve.served_policy import ServedPolicy

THREADS = 16
"""They read from the disk; commits have their own."""
_Result = TypeVar("_Result")


class BusyError(AtomMemError):
    """There is more to do than may wait: try again later."""


class Shared:
    """What all conversations of a server work with.

    Args:
        policy: Who reads and answers.
        log: Where everything is committed.
        metrics: What is counted.
        active: Most turns at the same time.
        waiting: Most that wait for one; further ones are refused.
        turn_seconds: How long a turn may take.
    """

    def __init__(
        self,
        policy: ServedPolicy,
        log: ConversationLog,
        metrics: Metrics,
        active: int,
        waiting: int,
        turn_seconds: float,
    ) -> None:
        self.policy, self.log, self.metrics, self.turn_seconds = policy, log, metrics, turn_seconds
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="atommem-log")
        self.turns_taken = 0
        """Turns in work or waiting."""
        self._slots = asyncio.Semaphore(active)
        self._most = active + waiting

    async def in_thread(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        """Do something with the log. Cancelled, it may or may not have been done: callers look again."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, work, *arguments)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn.

        Raises:
            BusyError: As many wait as may.
        """
        if self.turns_taken >= self._most:
            raise BusyError("this server has as many turns waiting as it takes: try again.")
        self.turns_taken += 1
        try:
            with self.metrics.stage("queue"):
                await self._slots.acquire()
            try:
                yield
            finally:
                self._slots.release()
        finally:
            self.turns_taken -= 1
