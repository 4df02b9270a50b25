"""Concurrent requests become one call: what the policy batch and the embedding batch have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Request = TypeVar("Request")
Result = TypeVar("Result")

LINGER_SECONDS = 0.002


@dataclass(slots=True)
class Waiting(Generic[Request, Result]):
    """A request, and the future that its caller awaits."""

    request: Request
    future: asyncio.Future[Result]

    def resolve(self, result: Result) -> None:
        """Hand over the result, unless the caller has given up."""
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Hand over an exception, unless the caller has given up."""
        if self.future.done():
            return
        if isinstance(error, asyncio.CancelledError):
            self.future.cancel()
        else:
            self.future.set_exception(error)


@dataclass(slots=True)
class _Lane(Generic[Request, Result]):
    """What waits in one event loop. It lives only as long as the task that drains it."""

    queue: list[Waiting[Request, Result]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


class RequestBatcher(Generic[Request, Result]):
    """Collects the requests of many coroutines and hands them over together.

    A batch starts once no request has arrived for `LINGER_SECONDS` of an idle event loop: the timer
    fires only after every coroutine that could run has run, so all that were resumed together are
    in. While a batch is handled, the next one collects. Requests wait in the event loop that they
    were made in, so one batcher may serve several loops, one after the other or at once.

    Args:
        handle: Resolves (or fails) every request it is given. Those that it leaves open when it
            raises get its exception: no caller waits for ever.
    """

    def __init__(self, handle: Callable[[list[Waiting[Request, Result]]], Awaitable[None]]) -> None:
        self._handle = handle
        self._lanes: dict[asyncio.AbstractEventLoop, _Lane[Request, Result]] = {}

    async def submit(self, request: Request) -> Result:
        """Wait for the result of `request`. Cancelling the wait does no harm to other requests."""
        loop = asyncio.get_running_loop()
        waiting: Waiting[Request, Result] = Waiting(request, loop.create_future())
        lane = self._lanes.get(loop)
        if lane is None:
            lane = self._lanes[loop] = _Lane()
            lane.task = loop.create_task(self._drain(loop, lane))
        lane.queue.append(waiting)
        return await waiting.future

    async def _drain(self, loop: asyncio.AbstractEventLoop, lane: _Lane[Request, Result]) -> None:
        batch: list[Waiting[Request, Result]] = []
        try:
            while lane.queue:
                await self._settle(lane)
                batch, lane.queue = [item for item in lane.queue if not item.future.done()], []
                if batch:
                    await self._handle_batch(batch)
        except asyncio.CancelledError as error:
            for item in batch + lane.queue:
                item.fail(error)
            raise
        finally:
            # No await since the queue was last seen empty: a later request makes a new lane.
            del self._lanes[loop]

    async def _settle(self, lane: _Lane[Request, Result]) -> None:
        seen = -1
        while seen != len(lane.queue):
            seen = len(lane.queue)
            await asyncio.sleep(LINGER_SECONDS)

    async def _handle_batch(self, batch: list[Waiting[Request, Result]]) -> None:
        try:
            await self._handle(batch)
        except Exception as error:  # whatever it is, it belongs to those who wait for this batch
            for item in batch:
                item.fail(error)
