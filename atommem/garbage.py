"""Python's garbage collector beside many short-lived objects and half a million that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_frozen = False  # by us, in this process: to count what is frozen takes a tenth of a second


@contextmanager
def frozen_heap() -> Iterator[None]:
    """What is there by now is in no collection's way meanwhile.

    Importing torch, transformers and TRL leaves half a million objects. To look through them takes a third of a second
    in which no thread goes on, and Python does so whenever the objects that survive have grown by a quarter. Where
    somebody has frozen them already, nothing changes.
    """
    global _frozen
    if _frozen or gc.get_freeze_count():
        yield
        return
    gc.collect()  # what is garbage by now would stay
    gc.freeze()
    _frozen = True
    try:
        yield
    finally:
        _frozen = False
        gc.unfreeze()


@contextmanager
def no_full_collection() -> Iterator[None]:
    """Full collections are for the caller to make, where few objects live. Young garbage is collected all the same."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*thresholds[:2], 1_000_000)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
