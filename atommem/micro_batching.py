"""Concurrent requests become one call, for policies and embedders."""

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
    """A request with the future that its caller awaits."""

    request: Request
    future: asyncio.Future[Result]

    def resolve(self, result: Result) -> None:
        """Set the result, unless the caller was cancelled."""
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Set an exception, unless the caller was cancelled."""
        if self.future.done():
            return
        if isinstance(error, asyncio.CancelledError):
            self.future.cancel()
        else:
            self.future.set_exception(error)


@dataclass(slots=True)
class _Lane(Generic[Request, Result]):
    """The waiting requests of one event loop, as long as its task runs."""

    queue: list[Waiting[Request, Result]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


class RequestBatcher(Generic[Request, Result]):
    """Collect the requests of many coroutines into batches.

    A batch starts after `LINGER_SECONDS` without a new request in an idle event loop: every
    coroutine that could run has run by then. While a batch is handled, the next one collects.
    Requests wait in their own event loop, so one batcher may serve several.

    Args:
        handle: Resolves or fails every request of a batch; if it raises, the open ones fail.
    """

    def __init__(self, handle: Callable[[list[Waiting[Request, Result]]], Awaitable[None]]) -> None:
        self._handle = handle
        self._lanes: dict[asyncio.AbstractEventLoop, _Lane[Request, Result]] = {}

    async def submit(self, request: Request) -> Result:
        """Wait for the result of a request; cancelling affects no other request."""
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
            # There was no await since the queue was empty, so a later request makes a new lane.
            del self._lanes[loop]

    async def _settle(self, lane: _Lane[Request, Result]) -> None:
        seen = -1
        while seen != len(lane.queue):
            seen = len(lane.queue)
            await asyncio.sleep(LINGER_SECONDS)

    async def _handle_batch(self, batch: list[Waiting[Request, Result]]) -> None:
        try:
            await self._handle(batch)
        except Exception as error:
            for item in batch:
                item.fail(error)
