"""What concerns all tests."""

from __future__ import annotations

import gc
import signal

# The modules that tests import, and the tests, are half a million objects that stay to the end. To look through them
# again and again was a quarter of the time of collecting the tests.


def pytest_sessionstart() -> None:
    gc.disable()
    # A shell's background jobs ignore Ctrl-C and hand that on to the commands that tests start and interrupt.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
