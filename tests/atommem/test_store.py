"""The store: ids, capacity, exact search with ties by age; against a plain dictionary."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atommem.embedding.embedder import Vectors
from atommem.episode import Entry
from atommem.errors import ConfigError
from atommem.memory.retention import RetentionRule, make_retention
from atommem.memory.store import Store

X = np.array([1, 0, 0, 0], dtype=np.float32)
Y = np.array([0, 1, 0, 0], dtype=np.float32)
Z = np.array([0, 0, 1, 0], dtype=np.float32)


def ids(store: Store, vector: Vectors, k: int) -> list[int]:
    return [entry.id for entry, _ in store.search(vector, k)]


def create(store: Store, text: str, vector: Vectors = X, step: int = 0) -> int:
    entry = store.create(text, vector, step).entry
    assert entry is not None
    return entry.id


def test_a_store_starts_empty() -> None:
    store = Store(4)
    assert len(store) == 0
    assert store.entries() == []
    assert store.search(X, 6) == []
    assert 1 not in store
    assert store.get(1) is None


def test_search_is_by_cosine() -> None:
    store = Store(4)
    both = (X + Y) / np.sqrt(2)
    for text, vector in (("x", X), ("y", Y), ("both", both), ("minus x", -X)):
        create(store, text, vector)
    found = store.search(X, 4)
    assert [entry.text for entry, _ in found] == ["x", "both", "y", "minus x"]
    assert [score for _, score in found] == pytest.approx([1, 2**-0.5, 0, -1])
    assert ids(store, X, 2) == [1, 3]
    assert ids(store, X, 99) == [1, 3, 2, 4]
    assert ids(store, X, 0) == []


def test_an_update_keeps_id_and_age_and_embeds_anew() -> None:
    store = Store(4)
    first, second = create(store, "a", X, 1), create(store, "b", Y, 2)
    assert store.update(first, "c", Y, 3) == "a"
    assert store.get(first) == Entry(first, "c", created=1, updated=3, used=1)
    assert ids(store, Y, 2) == [first, second]
    assert store.search(X, 1)[0][1] == pytest.approx(0)
    assert [entry.text for entry in store.entries()] == ["c", "b"]


def test_an_id_is_never_used_again() -> None:
    store = Store(4)
    first, second = create(store, "a"), create(store, "b")
    assert store.delete(second).text == "b"
    third = create(store, "c")
    assert third > second > first
    assert second not in store
    assert [entry.id for entry in store.entries()] == [first, third]
    assert ids(store, X, 9) == [first, third]


def test_ties_go_to_the_older_entry_also_at_the_edge_of_k() -> None:
    store = Store(4)
    for index in range(40):
        create(store, f"same {index}", X)
    store.update(1, "last row of the index now", X, 1)
    store.update(7, "and another", X, 1)
    assert ids(store, X, 5) == [1, 2, 3, 4, 5]
    assert ids(store, Y, 40) == list(range(1, 41))


def test_what_differs_in_the_last_bits_is_a_tie() -> None:
    store = Store(4)
    blurred = X.copy()
    blurred[0] -= np.float32(5e-7)
    create(store, "older", blurred)
    create(store, "younger", X)
    create(store, "worse", np.array([1 - 5e-6, np.sqrt(1e-5), 0, 0], dtype=np.float32))
    assert ids(store, X, 3) == [1, 2, 3]
    assert ids(store, X, 1) == [1]


@pytest.mark.parametrize(
    ("rule", "left", "evicted"), [("reject", [1, 2], None), ("fifo", [2, 3], 1), ("lru", [1, 3], 2)]
)
def test_a_full_store(rule: str, left: list[int], evicted: int | None) -> None:
    store = Store(4, capacity=2, retention=make_retention(rule))
    create(store, "a", X, 0)
    create(store, "b", Y, 0)
    store.mark_used([1], 1)
    created = store.create("c", Z, 2)
    assert (created.entry is None) == (rule == "reject")
    assert (created.evicted and created.evicted.id) == evicted
    assert [entry.id for entry in store.entries()] == left
    assert sorted(ids(store, Z, 9)) == left
    # A rejected entry used up no id, and a free place is taken without evicting.
    store.delete(left[0])
    assert store.create("d", Z, 3).evicted is None
    assert len(store) == 2


def test_any_object_with_evict_is_a_rule() -> None:
    class Shortest:
        def evict(self, entries: Sequence[Entry]) -> int | None:
            return min(entries, key=lambda entry: len(entry.text)).id

    rule: RetentionRule = Shortest()
    store = Store(4, capacity=2, retention=rule)
    for text in ("long", "s", "longer"):
        store.create(text, X, 0)
    assert [entry.text for entry in store.entries()] == ["long", "longer"]


def test_unknown_ids_raise_key_error() -> None:
    store = Store(4)
    create(store, "a")
    with pytest.raises(KeyError):
        store.update(2, "b", X, 0)
    with pytest.raises(KeyError):
        store.delete(2)
    with pytest.raises(KeyError):
        store.mark_used([2], 0)
    assert [entry.text for entry in store.entries()] == ["a"]


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        (np.ones(3, dtype=np.float32), r"shape \(3,\)"),
        (np.zeros(4, dtype=np.float32), "norm 0 instead of 1"),
        (2 * X, "norm 2 instead of 1"),
        (np.full(4, np.nan, dtype=np.float32), "norm nan instead of 1"),
    ],
)
def test_vectors_are_checked_before_anything_changes(vector: Vectors, message: str) -> None:
    store = Store(4, capacity=1, retention=make_retention("fifo"))
    create(store, "a")
    for attempt in (
        lambda: store.create("b", vector, 0),
        lambda: store.update(1, "b", vector, 0),
        lambda: store.search(vector, 1),
    ):
        with pytest.raises(ConfigError, match=message):
            attempt()
    assert [(entry.id, entry.text) for entry, _ in store.search(X, 9)] == [(1, "a")]


@pytest.mark.parametrize(("dim", "capacity"), [(0, None), (4, 0), (4, -1)])
def test_impossible_sizes(dim: int, capacity: int | None) -> None:
    with pytest.raises(ConfigError):
        Store(dim, capacity)


def test_faiss_is_imported_only_by_a_store() -> None:
    code = (
        "import sys, atommem.memory.store; assert 'faiss' not in sys.modules; "
        "atommem.memory.store.Store(2); assert 'faiss' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Four numbers of +-1/2: norm 1 and every inner product a multiple of 1/2, exactly, in any precision.
HALVES = st.lists(st.sampled_from([-0.5, 0.5]), min_size=4, max_size=4).map(lambda row: np.array(row, dtype=np.float32))
OPERATIONS = st.tuples(
    st.sampled_from(["create", "create", "update", "delete", "search", "used"]), st.integers(0, 9), HALVES
)


@settings(max_examples=150, deadline=None)
@given(st.lists(OPERATIONS, max_size=40), st.sampled_from([None, 1, 3]), st.sampled_from(["reject", "fifo", "lru"]))
def test_against_a_dictionary(operations: list[tuple[str, int, Vectors]], capacity: int | None, rule: str) -> None:
    store = Store(4, capacity, make_retention(rule))
    oracle: dict[int, tuple[Entry, Vectors]] = {}
    newest = 0
    for step, (name, number, vector) in enumerate(operations):
        chosen = list(oracle)[number % len(oracle)] if oracle else None
        if name == "create":
            full = len(oracle) == capacity
            if full and rule == "fifo":
                del oracle[min(oracle)]
            elif full and rule == "lru":
                del oracle[min(oracle, key=lambda key: (oracle[key][0].used, key))]
            store.create(str(step), vector, step)
            if not (full and rule == "reject"):
                newest += 1
                oracle[newest] = Entry(newest, str(step), step, step, step), vector
        elif name == "search":
            ranking = sorted(oracle, key=lambda key: (-float(vector @ oracle[key][1]), key))
            assert ids(store, vector, number) == ranking[:number]
        elif chosen is not None and name == "update":
            store.update(chosen, str(step), vector, step)
            oracle[chosen] = replace(oracle[chosen][0], text=str(step), updated=step), vector
        elif chosen is not None and name == "delete":
            store.delete(chosen)
            del oracle[chosen]
        elif chosen is not None:
            store.mark_used([chosen], step)
            oracle[chosen][0].used = step
        assert store.entries() == [entry for entry, _ in oracle.values()]
        assert len(store) == len(oracle)
