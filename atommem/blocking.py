"""Ctrl-C during work that blocks the event loop, such as loading a model."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C raise `KeyboardInterrupt` at once, while nothing is awaited.

    asyncio's handler only cancels the main task, which takes effect at its next await.
    """
    before = signal.getsignal(signal.SIGINT)
    asyncios = threading.current_thread() is threading.main_thread() and callable(before)
    if asyncios:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if asyncios:
            signal.signal(signal.SIGINT, before)
