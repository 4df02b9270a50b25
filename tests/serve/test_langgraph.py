"""LangGraph's store over a served conversation, held to what LangGraph's own store does.

pip install langgraph-checkpoint     # in an environment of its own: it brings a plugin for pytest
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.serve.servers import Running

base = pytest.importorskip("langgraph.store.base")

from langgraph.store.memory import InMemoryStore  # noqa: E402

from atommem.serve.langgraph_store import AtomMemStore  # noqa: E402

ANN, BOB = ("users", "ann"), ("users", "b/o-b")
PUTS: list[tuple[tuple[str, ...], str, dict[str, Any]]] = [
    (ANN, "home", {"text": "Ann lives in Rome."}),
    (ANN, "bees", {"text": "Ann keeps bees.", "hives": 3}),
    (BOB, "home", {"text": "Bob lives in Oslo."}),
    (("places",), "Oslo / north", {"country": "Norway", "size": {"people": 700_000}}),
    (ANN, "json", {"text": '{"looks": "like a value"}'}),
]


@pytest.fixture
def stores(server: Running) -> tuple[Any, Any]:
    """Ours and theirs, with the same in them."""
    ours, theirs = AtomMemStore(server.url), InMemoryStore()
    for namespace, key, value in PUTS:
        ours.put(namespace, key, value)
        theirs.put(namespace, key, value)
    return ours, theirs


def plain(found: Any) -> Any:
    """Without times and scores, in some order."""
    if isinstance(found, list):
        return sorted((plain(item) for item in found), key=repr)
    return (found.namespace, found.key, found.value) if hasattr(found, "value") else found


def test_what_is_put_is_there_as_in_langgraph_s_own_store(stores: tuple[Any, Any]) -> None:
    ours, theirs = stores
    for namespace, key, value in PUTS:
        assert plain(ours.get(namespace, key)) == (namespace, key, value)
    assert ours.get(ANN, "nothing") is None
    for settings in ({}, {"filter": {"hives": 3}}, {"limit": 2}, {"filter": {"hives": {"$eq": 3}}}):
        for prefix in ((), ("users",), ANN, ("places",)):
            mine, other = ours.search(prefix, **settings), theirs.search(prefix, **settings)
            assert len(mine) == len(other)
            if "limit" not in settings:
                assert plain(mine) == plain(other)
    for settings in ({}, {"prefix": ("users",)}, {"max_depth": 1}, {"suffix": ("ann",)}):
        assert plain(ours.list_namespaces(**settings)) == plain(theirs.list_namespaces(**settings))


def test_a_query_ranks_by_what_the_memory_holds(stores: tuple[Any, Any]) -> None:
    ours, _ = stores
    found = ours.search(("users",), query="Who lives in Oslo?")
    assert (found[0].namespace, found[0].key) == (BOB, "home")
    scores = [item.score for item in found]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > 0
    assert all(item.namespace == ANN for item in ours.search(ANN, query="Who lives in Oslo?"))
    assert len(ours.search((), query="lives", limit=1, offset=1)) == 1


def test_the_last_value_of_a_key_counts_and_what_is_deleted_is_gone_from_the_memory(
    stores: tuple[Any, Any],
) -> None:
    ours, _ = stores
    ours.put(ANN, "home", {"text": "Ann lives in Bern."})
    assert ours.get(ANN, "home").value == {"text": "Ann lives in Bern."}
    ours.delete(ANN, "home")
    assert ours.get(ANN, "home") is None
    assert all("Bern" not in str(item.value) for item in ours.search((), query="Bern"))
    ours.delete(ANN, "home")  # as in theirs: nothing happens


@pytest.mark.parametrize("name", ["letter", "https://x.test/a.txt", "langgraph/x"])
def test_texts_of_other_clients_are_no_values_and_in_nobody_s_way(
    stores: tuple[Any, Any], server: Running, name: str
) -> None:
    ours, _ = stores
    with server.http() as http:
        path = f"/v1/conversations/{ours.conversation}/items"
        http.post(
            path, json={"items": [{"content": "Bob sings.", "name": name}]}
        ).raise_for_status()
    assert ours.get(ANN, "home").value == PUTS[0][2]
    assert len(ours.search(())) == len(PUTS)


async def test_operations_in_a_batch_see_those_before_them(server: Running) -> None:
    store = AtomMemStore(server.url)
    put = base.PutOp(ANN, "home", {"text": "Ann lives in Rome."})
    results = await store.abatch([base.GetOp(ANN, "home"), put, base.GetOp(ANN, "home")])
    assert [result and result.value for result in results] == [None, None, put.value]
    again = await AtomMemStore(server.url, store.conversation).aget(ANN, "home")
    assert again.value == put.value
    assert again.created_at <= again.updated_at
