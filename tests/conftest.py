"""Settings of all tests."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest

from atommem.process import frozen_heap

# No test asks the hub for a name that is not a folder.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Imported modules are half a million objects that stay to the end. Without a garbage collector
# that visits them again and again, collecting tests takes three quarters of the time.


def pytest_sessionstart() -> None:
    gc.disable()
    # A shell's background jobs ignore Ctrl-C, and so would the commands that tests interrupt.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the files that take longest first: at the end one worker would wait for the other."""
    longest = ("test_checks.py", "test_wheel.py", "test_distributed.py", "test_demo.py")
    items.sort(key=lambda item: item.path.name not in longest)


def pytest_collection_finish() -> None:
    gc.enable()
    frozen_heap().__enter__()


@pytest.fixture(scope="module", autouse=True)
def _frozen_leftovers() -> Iterator[None]:
    """Exclude the objects that remain after a file's tests from later collections."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make reports without charts, which take a tenth of a second each."""
    from atommem.eval.reporting import page

    monkeypatch.setattr(page, "make_charts", lambda results: {})


@pytest.fixture(scope="session", autouse=True)
def _soon_again() -> None:
    """Retry requests at once: a failing server of a test needs no time to recover."""
    from atommem.servers.client import ServerClient

    ServerClient.__init__.__kwdefaults__["backoff"] = 0.001  # type: ignore[index]
