"""A process at work: concurrent jobs, seconds spent waiting, garbage, and a background loop."""

import asyncio
import gc
import os
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import Any, TypeVar

from atommem.errors import ConfigError

Result = TypeVar("Result")

_frozen = False  # gc.get_freeze_count takes a tenth of a second


class ActivityClock:
    """Measure for how long at least one activity of a kind was going on.

    A second with 200 pending requests counts as one, so that times are shares of the wall clock.
    """

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._running, self._total = Counter[str](), dict[str, float]()

    @contextmanager
    def busy(self, kind: str) -> Iterator[None]:
        self._add_elapsed()
        self._running[kind] += 1
        try:
            yield
        finally:
            self._add_elapsed()
            self._running[kind] -= 1

    def take(self) -> dict[str, float]:
        """Return the seconds of each kind since the last call."""
        self._add_elapsed()
        total, self._total = self._total, {}
        return total

    def _add_elapsed(self) -> None:
        now = time.perf_counter()
        for kind, running in self._running.items():
            if running:
                self._total[kind] = self._total.get(kind, 0.0) + now - self._last
        self._last = now


class StepTimeoutError(Exception):
    """The time of `time_limit` was up."""


@asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncIterator[None]:
    """Cancel the block after some seconds and raise StepTimeoutError."""
    try:
        async with asyncio.timeout(seconds) as clock:
            yield
    except TimeoutError as error:
        if not clock.expired():  # a TimeoutError of the policy, the embedder or the environment
            raise
        raise StepTimeoutError from error


async def run_jobs(
    run: Callable[[Any, int], Awaitable[Result]],
    jobs: Sequence[tuple[Any, int]],
    on_episode: Callable[[int, Result], None] | None = None,
    max_in_flight: int | asyncio.Semaphore | None = None,
) -> list[Result]:
    """Run `run(task, sample)` for all jobs; see `atommem.rollout.EpisodeRunner.run_all`."""
    slots = max_in_flight
    if not isinstance(slots, asyncio.Semaphore):
        slots = asyncio.Semaphore(slots or max(1, len(jobs)))

    async def one(index: int, task: Any, sample: int) -> Result:
        async with slots:
            result = await run(task, sample)
        if on_episode is not None:
            on_episode(index, result)
        return result

    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(index, *job)) for index, job in enumerate(jobs)]
    except BaseExceptionGroup as failures:
        # The first failure is the cause; the others only repeat it.
        raise failures.exceptions[0] from None
    return [task.result() for task in running]


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Exclude the present objects from collections, unless they are frozen already.

    Importing torch, transformers and TRL leaves half a million objects. A full collection takes a
    third of a second, in which no thread runs, whenever surviving objects have grown by a quarter.
    """
    global _frozen
    if _frozen:
        yield
        return
    gc.collect()  # garbage would be frozen too
    gc.freeze()
    _frozen = True
    try:
        yield
    finally:
        _frozen = False
        gc.unfreeze()


@contextmanager
def no_full_collection() -> Iterator[None]:
    """Disable full collections, which the caller makes while few objects are alive."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*thresholds[:2], 1_000_000)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


@cache
def background_loop() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    """Start an event loop in a daemon thread, for callers without one or inside one (Jupyter)."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="atommem-loop", daemon=True)
    thread.start()
    return loop, thread


os.register_at_fork(after_in_child=background_loop.cache_clear)  # a fork has no such thread


def wait_for(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in the background and wait; Ctrl-C cancels it and is raised at its end."""
    loop, thread = background_loop()
    if threading.current_thread() is thread:
        work.close()
        raise ConfigError("a Memory was used from its own progress callback. Use an AsyncMemory.")
    ended = threading.Event()

    async def run() -> Result:
        try:
            return await work
        finally:
            ended.set()

    future = asyncio.run_coroutine_threadsafe(run(), loop)
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        ended.wait()
        raise
