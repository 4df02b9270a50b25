"""The vectors of a store: exact search, ties by age that do not chain, forks; and the map of its entries.

Both against plain dictionaries.
"""

from __future__ import annotations

import asyncio
import random
import time

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atommem.embedding.embedder import Vectors
from atommem.errors import ConfigError
from atommem.memory import index as index_module
from atommem.memory.index import TIE_TOLERANCE, VectorIndex, best
from atommem.memory.shared_map import SharedMap

X = np.array([1, 0, 0, 0], dtype=np.float32)
Y = np.array([0, 1, 0, 0], dtype=np.float32)


def ids(index: VectorIndex, vector: Vectors, k: int) -> list[int]:
    return [entry_id for entry_id, _ in index.search(vector, k)]


def by_hand(scores: npt.NDArray[np.floating], k: int) -> list[int]:
    """The rule as it is written: the best score opens a group, the best outside of it the next."""
    left = {number: float(score) for number, score in enumerate(scores, start=1)}
    order: list[int] = []
    while left:
        top = max(left.values())
        group = sorted(number for number, score in left.items() if score >= top - TIE_TOLERANCE)
        order += group
        for number in group:
            del left[number]
    return order[:k]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 12), max_size=40), st.integers(0, 45))
def test_the_order_is_that_of_the_rule(steps: list[int], k: int) -> None:
    scores = (0.25 + 4e-7 * np.array(steps, dtype=np.float64)).astype(np.float32)
    found = best(scores, np.arange(1, len(steps) + 1), k)
    assert [entry_id for entry_id, _ in found] == by_hand(scores, k)


def test_a_hundred_thousand_ties_are_found_fast() -> None:
    scores, numbers = (
        np.full(100_000, 0.5, dtype=np.float32),
        np.random.default_rng(0).permutation(100_000),
    )
    started = time.process_time()
    assert [entry_id for entry_id, _ in best(scores, numbers, 100)] == list(range(100))
    assert time.process_time() - started < 0.1


async def test_threads_agree_over_many_blocks_and_blocks_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_module, "_BLOCK_NUMBERS", 16 * 4)
    monkeypatch.setattr(index_module, "_SLAB_BLOCKS", 2)
    rows = np.random.default_rng(0).standard_normal((500, 4)).astype(np.float32)  # 32 blocks
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    index = VectorIndex(4)
    index.add(range(500), rows)
    assert index.is_large
    found = await asyncio.gather(*(index.find(row, 7) for row in rows[:50]))
    assert found == [index.search(row, 7) for row in rows[:50]]
    for number in range(499):
        index.remove(number)
    assert (len(index._blocks), ids(index, rows[499], 9)) == (3, [499])


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        (np.ones(3, dtype=np.float32), r"shape \((1, 3|3,)\)"),
        (np.zeros(4, dtype=np.float32), "norm 0 instead of 1"),
        (2 * X, "norm 2 instead of 1"),
        (np.full(4, np.nan, dtype=np.float32), "norm nan instead of 1"),
    ],
)
def test_vectors_are_checked_before_anything_changes(vector: Vectors, message: str) -> None:
    index = VectorIndex(4)
    index.put(1, X)
    for attempt in (
        lambda: index.put(1, vector),
        lambda: index.put(2, vector),
        lambda: index.add([2], vector[None]),
        lambda: index.search(vector, 1),
    ):
        with pytest.raises(ConfigError, match=message):
            attempt()
    for ids in ([2, 2], [5, 1]):
        with pytest.raises(ConfigError, match="give each id once"):
            index.add(ids, np.stack([Y] * len(ids)))
    assert index.search(X, 9) == [(1, 1.0)]
    with pytest.raises(ConfigError, match="dim is 0"):
        VectorIndex(0)


def exact(rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """16 of 64 places hold 1/4 or -1/4: norm 1, and inner products are multiples of 1/16, ties at every rank."""
    vector = np.zeros(64)
    vector[rng.choice(64, 16, replace=False)] = rng.choice([-0.25, 0.25], 16)
    return vector


@pytest.mark.parametrize("rows_in_a_block", [16, 4096])
def test_against_a_dictionary(rows_in_a_block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_BLOCK_NUMBERS", rows_in_a_block * 64)
    rng, vectors, index = random.Random(0), np.random.default_rng(0), VectorIndex(64)
    oracle: dict[int, npt.NDArray[np.float64]] = {}
    for newest in range(800):
        action = rng.choices(
            ("put", "add", "search", "replace", "remove", "fork"), (8, 1, 6, 3, 8, 1)
        )[0]
        chosen = rng.choice(list(oracle)) if oracle else None
        if action == "put" or (action == "replace" and chosen is not None):
            known = exact(vectors)
            entry_id = newest if action == "put" or chosen is None else chosen
            index.put(entry_id, known.astype(np.float32))
            oracle[entry_id] = known
        elif action == "add":  # as many as fill some blocks
            new = {
                800 + 20 * newest + number: exact(vectors)
                for number in range(rng.choice((0, 1, 20)))
            }
            index.add([*new], np.array([*new.values()], dtype=np.float32).reshape(-1, 64))
            oracle |= new
        elif action == "remove" and chosen is not None:
            index.remove(chosen)
            del oracle[chosen]
        elif action == "fork":
            left, index = index, index.fork()
            for entry_id in list(oracle)[:3]:  # what happens to the other must not be seen
                left.remove(entry_id)
        elif action == "search":
            known = exact(vectors)
            scores = {key: round(float(vector @ known), 12) for key, vector in oracle.items()}
            expected = sorted(scores, key=lambda key: (-scores[key], key))
            k = rng.choice((1, 2, 6, 20, 1000))
            found = index.search(known.astype(np.float32), k)
            assert [entry_id for entry_id, _ in found] == expected[:k]
            assert [score for _, score in found] == pytest.approx(
                [scores[key] for key in expected[:k]], abs=2e-6
            )
        assert len(index) == len(oracle)
    assert [entry_id for entry_id in range(800 * 21) if entry_id in index] == sorted(oracle)
    np.testing.assert_array_equal(index.vectors(list(oracle)), list(oracle.values()))
    for call in (lambda: index.remove(-1), lambda: index.vectors([-1])):
        with pytest.raises(KeyError):
            call()


# A map whose copies share -------------------------------------------------------------------------


def test_against_dicts_and_their_copies() -> None:
    rng = random.Random(0)
    pairs: list[tuple[SharedMap[int], dict[int, int]]] = [(SharedMap(), {})]
    for number in range(4000):
        shared, plain = rng.choice(pairs)
        action = rng.choices(("new", "set", "delete", "copy"), (20, 6, 8, 1))[0]
        chosen = rng.choice(list(plain)) if plain else None
        if action == "new" or chosen is None:
            shared[number], plain[number] = number, number
        elif action == "set":
            shared[chosen], plain[chosen] = -number, -number
        elif action == "delete":
            del shared[chosen], plain[chosen]
        elif len(pairs) < 12:
            pairs.append((shared.copy(), dict(plain)))
    assert len(pairs) == 12
    for shared, plain in pairs:
        assert shared == plain
        assert (list(shared), len(shared)) == (list(plain), len(plain))
        assert (list(shared.values()), list(shared.items())) == (
            list(plain.values()),
            list(plain.items()),
        )
        assert 9999 not in shared
        assert shared.get(9999) is None
        for call in (shared.__getitem__, shared.__delitem__):
            with pytest.raises(KeyError, match="9999"):
                call(9999)
