"""Concurrent requests become one call, for policies and embedders."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
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
        if not self.future.done():
            self.future.set_exception(error)


class RequestBatcher(Generic[Request, Result]):
    """Collect the requests of many coroutines into batches.

    A batch starts after `LINGER_SECONDS` without a new request: every coroutine that could run has
    run by then. While a batch is handled, the next one collects. Requests wait in their own event
    loop. `handle` resolves or fails every request; if it raises, the open ones fail.
    """

    def __init__(self, handle: Callable[[list[Waiting[Request, Result]]], Awaitable[None]]) -> None:
        self._handle = handle
        self._queues: dict[asyncio.AbstractEventLoop, list[Waiting[Request, Result]]] = {}
        self._tasks = set[asyncio.Task[None]]()

    async def submit(self, request: Request) -> Result:
        """Wait for the result of a request; cancelling affects no other request."""
        loop = asyncio.get_running_loop()
        waiting: Waiting[Request, Result] = Waiting(request, loop.create_future())
        if loop in self._queues:
            self._queues[loop].append(waiting)
        else:
            self._queues[loop] = [waiting]
            task = loop.create_task(self._drain(loop))
            self._tasks.add(task)  # the loop holds tasks weakly
            task.add_done_callback(self._tasks.discard)
        return await waiting.future

    async def _drain(self, loop: asyncio.AbstractEventLoop) -> None:
        queue, batch = self._queues[loop], list[Waiting[Request, Result]]()
        try:
            while queue:
                seen = 0
                while seen < len(queue):
                    seen = len(queue)
                    await asyncio.sleep(LINGER_SECONDS)
                batch = [item for item in queue if not item.future.done()]
                queue.clear()
                try:
                    await self._handle(batch)
                except Exception as error:
                    for item in batch:
                        item.fail(error)
        except asyncio.CancelledError as error:
            for item in batch + queue:
                item.fail(error)
            raise
        finally:
            # There was no await since the queue was empty, so a later request makes a new one.
            del self._queues[loop]
