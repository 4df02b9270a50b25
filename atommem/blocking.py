"""Work that blocks an event loop of our own, as loading a model does: Ctrl-C must not wait for its end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """Ctrl-C raises `KeyboardInterrupt` here at once, in the place of asyncio's, which cancels what awaits something.

    Nothing may be awaited meanwhile.
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
