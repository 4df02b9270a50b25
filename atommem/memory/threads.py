"""A few threads of the process for work on large stores, which would stall the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

Result = TypeVar("Result")
THREADS = max(1, min(8, os.cpu_count() or 1))


async def offload(function: Callable[..., Result], *arguments: Any) -> Result:
    """Run `function` in a thread. It is waited for also when this is cancelled: what it works on is at rest then."""
    future = asyncio.get_running_loop().run_in_executor(_pool(), function, *arguments)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                continue
        raise


def share(jobs: Sequence[Callable[[], None]]) -> None:
    """Do all of `jobs`, which release the GIL, in this thread and those that happen to be free.

    A job that no thread has begun when this one comes to it is done here, so that threads never wait for a place.
    """
    first, *others = jobs
    begun = [(_pool().submit(job), job) for job in others]
    first()
    for future, job in begun:
        if future.cancel():
            job()
        else:
            future.result()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="atommem-memory")


# A forked process has none of the threads that the pool counts on.
os.register_at_fork(after_in_child=_pool.cache_clear)
