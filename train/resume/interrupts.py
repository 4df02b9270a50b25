"""Stopping a run from outside: SIGTERM and SIGUSR1 as schedulers send them, and Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from atommem.errors import AtomMemError

Result = TypeVar("Result")

EXIT_INTERRUPTED = 75
"""Exit status of a run that was asked to stop and can be resumed (EX_TEMPFAIL of sysexits.h: try again)."""

SAME_REQUEST_SECONDS = 2.0
"""Launchers pass a signal on that the workers have got as well: within this time it is one request."""

LET_GO_SECONDS = 10.0
"""How long an abandoned rollout is waited for: one token, as a rule."""


class TrainingInterrupted(AtomMemError):  # noqa: N818  # not an error: the run does what it was asked to
    """The run was asked to stop, and stopped where it can be resumed."""


class StopRequest:
    """Notes that the process was asked to stop, and abandons the work that it can abandon.

    The first SIGTERM, SIGINT or SIGUSR1 sets `requested`; what runs under `guard` is cancelled. A second SIGTERM or
    SIGINT ends the process at once, by the signal itself.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._asked = 0.0
        self._cancel: Callable[[], object] | None = None

    @property
    def requested(self) -> bool:
        """Whether a signal has come."""
        return self.signal is not None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the signals meanwhile. Does nothing outside the main thread, which alone gets signals.

        A signal that is ignored (SIGINT of a background job) stays ignored.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in self.SIGNALS}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def guard(self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """The result of `work`; None when the process was asked to stop before it was there."""
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
            # What samples in a thread uses the model until it has seen that nobody waits for it any more.
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                await asyncio.wait(others, timeout=LET_GO_SECONDS)
            return None
        finally:
            self._cancel = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = signal.Signals(number)
            self._asked = time.monotonic()
            # Not print: the handler may have interrupted one.
            os.write(
                2,
                f"\n{self.signal.name}: saving a checkpoint, then stopping (again to exit at once)\n".encode(),
            )
            if self._cancel is not None:
                self._cancel()
        elif number != signal.SIGUSR1 and time.monotonic() - self._asked > SAME_REQUEST_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
