"""LangGraph's store over a served conversation, compared with LangGraph's own.

Run it where langgraph-checkpoint is installed: pip install 'atommem[langgraph]'.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.serve.servers import Running, items

base = pytest.importorskip("langgraph.store.base")
_FILE = Path(__file__).parents[2] / "examples" / "langgraph" / "atommem_store.py"
AtomMemStore = runpy.run_path(str(_FILE))["AtomMemStore"]
InMemoryStore = pytest.importorskip("langgraph.store.memory").InMemoryStore
ANN, BOB = ("users", "ann"), ("users", "b/o-b")
VALUES: list[tuple[tuple[str, ...], str, dict[str, Any]]] = [
    (ANN, "home", {"text": "Ann lives in Rome."}),
    (ANN, "bees", {"text": "Ann keeps bees.", "hives": 3}),
    (BOB, "home", {"text": "Bob lives in Oslo."}),
    (("places",), "Oslo / north", {"country": "Norway", "size": {"people": 700_000}}),
    (ANN, "json", {"text": '{"looks": "like a value"}'}),
]


@pytest.fixture
def stores(server: Running) -> tuple[Any, Any]:
    """Ours and LangGraph's with the same values."""
    ours, theirs = AtomMemStore(server.url), InMemoryStore()
    for value in VALUES:
        ours.put(*value)
        theirs.put(*value)
    with server.http() as http:  # a text of another client is not a value
        path = f"/v1/conversations/{ours.conversation}/items"
        http.post(path, json=items("Cid sings.", name="letter")).raise_for_status()
    return ours, theirs


def plain(found: Any) -> Any:
    """Values without times and scores, in some order."""
    if isinstance(found, list):
        return sorted((plain(item) for item in found), key=repr)
    return (found.namespace, found.key, found.value) if hasattr(found, "value") else found


def test_values_equal_those_of_langgraph_s_store(stores: tuple[Any, Any]) -> None:
    ours, theirs = stores
    for namespace, key, value in VALUES:
        assert plain(ours.get(namespace, key)) == (namespace, key, value)
    assert ours.get(ANN, "nothing") is None
    for settings in ({}, {"filter": {"hives": 3}}, {"filter": {"hives": {"$eq": 3}}}):
        for prefix in ((), ("users",), ANN, ("places",)):
            mine, other = ours.search(prefix, **settings), theirs.search(prefix, **settings)
            assert plain(mine) == plain(other)
    for settings in ({}, {"prefix": ("users",)}, {"max_depth": 1}, {"suffix": ("ann",)}):
        assert plain(ours.list_namespaces(**settings)) == plain(theirs.list_namespaces(**settings))


def test_search_ranks_by_entries_and_returns_the_last_put(stores: tuple[Any, Any]) -> None:
    ours, _ = stores
    found = ours.search(("users",), query="Who lives in Oslo?")
    assert (found[0].namespace, found[0].key) == (BOB, "home")
    ours.put(ANN, "home", {"text": "Ann lives in Bern."})
    assert ours.get(ANN, "home").value == {"text": "Ann lives in Bern."}
    ours.delete(ANN, "home")
    assert ours.get(ANN, "home") is None
    assert all("Bern" not in str(item.value) for item in ours.search((), query="Bern"))


async def test_batch_sees_earlier_operations(server: Running) -> None:
    store = AtomMemStore(server.url)
    put = base.PutOp(ANN, "home", {"text": "Ann lives in Rome."})
    results = await store.abatch([base.GetOp(ANN, "home"), put, base.GetOp(ANN, "home")])
    assert [result and result.value for result in results] == [None, None, put.value]
    again = await AtomMemStore(server.url, store.conversation).aget(ANN, "home")
    assert again.value == put.value
    assert again.created_at <= again.updated_at
