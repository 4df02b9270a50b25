"""What concerns all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest

from atommem.garbage import frozen_heap

# A name that no folder has is looked for on the hub, which no test asks.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# The modules that tests import, and the tests, are half a million objects that stay to the end. To look through them
# again and again was a quarter of the time of collecting the tests, and a tenth of running them.


def pytest_sessionstart() -> None:
    gc.disable()
    # A shell's background jobs ignore Ctrl-C and hand that on to the commands that tests start and interrupt.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    gc.enable()
    frozen_heap().__enter__()


@pytest.fixture(scope="module", autouse=True)
def _frozen_leftovers() -> Iterator[None]:
    """What a file's tests leave, be it what they imported, is in no later collection's way either."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without charts, each of which takes a tenth of a second."""
    from atommem.eval.reporting import report_cli

    monkeypatch.setattr(report_cli, "make_charts", lambda *data: [])


@pytest.fixture(scope="session", autouse=True)
def _soon_again() -> None:
    """Requests are repeated at once: a server of a test that fails needs no time to recover."""
    from atommem.servers.client import ServerClient

    ServerClient.__init__.__kwdefaults__["backoff"] = 0.001  # type: ignore[index]
