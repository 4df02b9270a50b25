"""What concerns all tests."""

from __future__ import annotations

import gc

# The modules that tests import, and the tests, are half a million objects that stay to the end. To look through them
# again and again was a quarter of the time of collecting the tests.


def pytest_sessionstart() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
