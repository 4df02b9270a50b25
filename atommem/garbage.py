"""The garbage collector in processes with half a million permanent objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_frozen = False  # gc.get_freeze_count takes a tenth of a second


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Exclude the present objects from collections, unless they are frozen already.

    Importing torch, transformers and TRL leaves half a million objects. A full collection takes a
    third of a second, in which no thread runs, whenever surviving objects have grown by a quarter.
    """
    global _frozen
    if _frozen or gc.get_freeze_count():
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
