"""The collector is told what stays."""

from __future__ import annotations

import gc
import weakref

import pytest

from atommem import garbage
from atommem.garbage import frozen_heap, no_full_collection


class Node:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


def test_what_is_there_is_frozen_and_let_go_also_after_an_error(request, monkeypatch):
    monkeypatch.setattr(garbage, "_frozen", False)  # tests/conftest.py has
    request.addfinalizer(gc.freeze)
    gc.unfreeze()
    with pytest.raises(ZeroDivisionError), frozen_heap():  # noqa: PT012
        outer = gc.get_freeze_count()
        assert outer > 10_000
        inside = weakref.ref(Node())
        gc.collect()
        assert inside() is None, "garbage made inside is found"
        young = [
            [number] for number in range(1000)
        ]  # to be frozen by nobody; other threads may free some that are
        for by_us in (True, False):
            monkeypatch.setattr(garbage, "_frozen", by_us)
            with frozen_heap():
                assert abs(gc.get_freeze_count() - outer) < len(young) // 2
        assert abs(gc.get_freeze_count() - outer) < len(young) // 2, "the outer freeze holds"
        1 / 0  # noqa: B018
    assert gc.get_freeze_count() == 0


def test_only_young_garbage_is_collected_by_itself(request):
    generations: set[int] = set()

    def note(phase: str, info: dict[str, int]) -> None:
        generations.add(info["generation"])

    gc.callbacks.append(note)
    request.addfinalizer(lambda: gc.callbacks.remove(note))
    with no_full_collection():
        kept = [[number] for number in range(200_000)]
    assert len(kept) == 200_000
    assert generations == {0, 1}
