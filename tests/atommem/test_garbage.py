"""The collector is told what stays."""

from __future__ import annotations

import gc
import weakref

import pytest

from atommem.garbage import frozen_heap, no_full_collection


class Node:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def _nothing_frozen():
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    yield
    if frozen:  # by tests/conftest.py
        gc.freeze()


def _fail_in_frozen_heap() -> None:
    with frozen_heap():
        assert gc.get_freeze_count() > 10_000
        inside = weakref.ref(Node())
        gc.collect()
        assert inside() is None, "garbage made inside is found"
        raise RuntimeError


@pytest.mark.usefixtures("_nothing_frozen")
def test_what_is_there_is_frozen_and_let_go_also_after_an_error():
    with pytest.raises(RuntimeError):
        _fail_in_frozen_heap()
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("_nothing_frozen")
def test_the_outer_freeze_holds():
    with frozen_heap():
        outer = gc.get_freeze_count()
        with frozen_heap():
            assert gc.get_freeze_count() == outer
        assert gc.get_freeze_count() == outer


def test_only_young_garbage_is_collected_by_itself():
    generations: set[int] = set()

    def note(phase: str, info: dict[str, int]) -> None:
        generations.add(info["generation"])

    gc.callbacks.append(note)
    try:
        with no_full_collection():
            kept = [[number] for number in range(200_000)]
    finally:
        gc.callbacks.remove(note)
    assert len(kept) == 200_000
    assert generations == {0, 1}
