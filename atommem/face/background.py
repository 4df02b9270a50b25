"""An event loop in a thread of its own, for callers that have none, or that are inside of one (Jupyter)."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

from atommem.errors import ConfigError

Result = TypeVar("Result")


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run it in the background's loop and wait. Ctrl-C cancels it, and is raised when it has ended.

    Raises:
        ConfigError: The caller is that loop's own thread, which would wait for itself.
    """
    loop, thread = _background()
    if threading.current_thread() is thread:
        coroutine.close()
        raise ConfigError(
            "a Memory was used from its own progress callback: use an AsyncMemory for that."
        )
    ended = threading.Event()

    async def watched() -> Result:
        try:
            return await coroutine
        finally:
            ended.set()

    future = asyncio.run_coroutine_threadsafe(watched(), loop)
    try:
        return future.result()
    except KeyboardInterrupt:
        if future.cancel():
            ended.wait()
        raise


@cache
def _background() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="atommem-loop", daemon=True)
    thread.start()
    return loop, thread


# A forked process has no such thread.
os.register_at_fork(after_in_child=_background.cache_clear)
