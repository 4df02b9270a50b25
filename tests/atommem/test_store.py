from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import numpy.typing as npt

from atommem.memory.store import TextVectors, VectorStore, digests_of, embed_texts
from tests.fakes import WordEmbedder

X = np.array([1, 0, 0, 0], dtype=np.float32)


def test_search_ties_at_cutoff_return_the_oldest() -> None:
    store = VectorStore(4)
    rows = np.tile(np.array([0.6, 0.8, 0, 0], dtype=np.float32), (200, 1))
    ids = np.random.default_rng(0).permutation(200) + 1
    store.add(ids, rows)
    store.add([300], X[None])
    assert [entry_id for entry_id, _ in store.search(X, 40)] == [300, *range(1, 40)]


def exact(rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """16 of 64 numbers are 1/4 or -1/4: norm 1, with ties at every rank."""
    vector = np.zeros(64)
    vector[rng.choice(64, 16, replace=False)] = rng.choice([-0.25, 0.25], 16)
    return vector


def test_store_equals_dictionary_after_random_changes() -> None:
    rng, vectors, store = random.Random(1), np.random.default_rng(0), VectorStore(64)
    expected: dict[int, npt.NDArray[np.float64]] = {}
    for newest in range(600):
        action = rng.choices(("put", "search", "replace", "remove", "copy"), (10, 6, 3, 6, 1))[0]
        known = list(expected)
        if action == "put" or (action == "replace" and known):
            entry_id = newest if action == "put" else rng.choice(known)
            expected[entry_id] = exact(vectors)
            store.update({entry_id: expected[entry_id].astype(np.float32)})
        elif action == "remove" and known:
            entry_id = rng.choice(known)
            store.update({entry_id: None})
            del expected[entry_id]
        elif action == "copy":  # a change of one does not change the other
            left, store = rng.sample((store, store.copy()), 2)
            left.update(dict.fromkeys(known[:3]))
        elif action == "search":
            query = exact(vectors)
            scores = {key: round(float(vector @ query), 12) for key, vector in expected.items()}
            order = sorted(scores, key=lambda key: (-scores[key], key))
            k = rng.choice((1, 6, 20, 1000))
            found = store.search(query.astype(np.float32), k)
            assert [entry_id for entry_id, _ in found] == order[:k]
        assert len(store) == len(expected)
    np.testing.assert_array_equal(store.rows(list(expected)), list(expected.values()))


async def test_text_vectors_loaded_from_file_save_embedding(tmp_path: Path) -> None:
    embedder, path = WordEmbedder(), tmp_path / "v"
    rows = await embedder.embed(["ann", "bob"], "entry")
    TextVectors(embedder.id, digests_of(["ann", "bob"], "entry"), rows).save(path)
    cache = TextVectors.load(path)
    assert cache is not None
    embedder.calls.clear()
    found = await embed_texts(embedder, ["bob", "carol", "ann"], "entry", cache)
    assert embedder.calls == [("entry", "carol")]
    np.testing.assert_array_equal(found[[2, 0]], rows)
    assert cache.find(["ann"], "query").tolist() == [-1]
    path.write_bytes(b"no vectors")
    assert TextVectors.load(path) is None
