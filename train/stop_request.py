"""Stop a run from outside: SIGTERM and SIGUSR1 as schedulers send them, and Ctrl-C."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")

EXIT_INTERRUPTED = 75  # of an interrupted run that can resume (EX_TEMPFAIL of sysexits.h)

SAME_REQUEST_SECONDS = 2.0  # launchers forward a signal that workers received, too

CANCEL_SECONDS = 10.0  # how long to wait for the threads of a cancelled rollout; usually one token

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopRequest:
    """Records that the process was asked to stop, and cancels the running rollout.

    The first SIGTERM, SIGINT or SIGUSR1 sets `requested` and cancels the work under `guard`. A
    second SIGTERM or SIGINT ends the process at once.
    """

    def __init__(self) -> None:
        self.requested, self._requested_at = False, 0.0
        self._cancel: Callable[[], object] | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the signals inside; ignored ones (SIGINT of a background job) stay so."""
        if threading.current_thread() is not threading.main_thread():  # others get no signals
            yield
            return
        before = {n: found for n in _SIGNALS if (found := signal.getsignal(n)) != signal.SIG_IGN}
        for number in before:
            signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def guard(self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """Return the result of `work`, or None if a stop was requested before it finished."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            if self.requested:
                task.cancel()
            return await task
        except asyncio.CancelledError:
            if not self.requested:
                raise
            # A sampling thread uses the model until it notices that nobody waits for it.
            if others := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(others, timeout=CANCEL_SECONDS)
            return None
        finally:
            self._cancel = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.requested:
            self.requested, self._requested_at = True, time.monotonic()
            # Unbuffered, because the handler may have interrupted a print.
            os.write(2, b"\nstopping: a checkpoint is saved first (repeat to exit now)\n")
            if self._cancel is not None:
                self._cancel()
            return
        again = time.monotonic() - self._requested_at > SAME_REQUEST_SECONDS
        if again and number != signal.SIGUSR1:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
