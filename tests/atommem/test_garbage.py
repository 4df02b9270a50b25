"""Freezing of long-lived objects."""

from __future__ import annotations

import gc

import pytest

from atommem import garbage
from atommem.garbage import frozen_heap, no_full_collection


def test_frozen_heap_after_an_error_unfreezes(request, monkeypatch):
    monkeypatch.setattr(garbage, "_frozen", False)  # tests/conftest.py has
    request.addfinalizer(gc.freeze)
    gc.unfreeze()
    with pytest.raises(ZeroDivisionError), frozen_heap():  # noqa: PT012
        assert gc.get_freeze_count() > 10_000
        1 / 0  # noqa: B018
    assert gc.get_freeze_count() == 0


def test_no_full_collection_collects_young_generations_only(request):
    generations: set[int] = set()

    def note(phase: str, info: dict[str, int]) -> None:
        generations.add(info["generation"])

    gc.callbacks.append(note)
    request.addfinalizer(lambda: gc.callbacks.remove(note))
    with no_full_collection():
        kept = [[number] for number in range(200_000)]
    assert len(kept) == 200_000
    assert generations == {0, 1}
