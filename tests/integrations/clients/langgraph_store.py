"""LangGraph's store: equal to InMemoryStore, ranked within namespace and filter."""

import asyncio
import runpy
import sys
from pathlib import Path
from typing import Any

from langgraph.store.base import GetOp, PutOp
from langgraph.store.memory import InMemoryStore
from openai import OpenAI

URL = sys.argv[1]
EXAMPLE = Path(__file__).parents[3] / "examples" / "langgraph" / "atommem_store.py"
ours: Any = runpy.run_path(str(EXAMPLE))["AtomMemStore"](URL)
theirs = InMemoryStore()
ANN, BOB, CHINESE = ("users", "ann"), ("users", "b/o-b"), ("用户", "安" * 60)
VALUES: list[tuple[tuple[str, ...], str, dict[str, Any]]] = [
    (ANN, "home", {"text": "Ann lives in Rome."}),
    (ANN, "bees", {"text": "Ann keeps bees.", "hives": 3}),
    (BOB, "home", {"text": "Bob lives in Oslo."}),
    (("places",), "Oslo / north, 2", {"country": "Norway", "size": {"people": 700_000}}),
    (CHINESE, "家" * 60, {"text": "null\0"}),
]


def plain(found: Any) -> Any:
    if isinstance(found, list):
        return sorted((plain(item) for item in found), key=repr)
    return (found.namespace, found.key, found.value) if hasattr(found, "value") else found


for value in VALUES:
    ours.put(*value)
    theirs.put(*value)
client = OpenAI(base_url=f"{URL}/v1", api_key="none")
letter: Any = [{"content": "Cid sings.", "name": "letter"}]  # of another client: not a value
client.conversations.items.create(ours.conversation, items=letter)
for namespace, key, stored in VALUES:
    assert plain(ours.get(namespace, key)) == (namespace, key, stored)
SEARCHES: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    ((), {}),
    (("users",), {"filter": {"hives": {"$eq": 3}}}),
]
for prefix, settings in SEARCHES:
    assert plain(ours.search(prefix, **settings)) == plain(theirs.search(prefix, **settings))
for settings in ({"prefix": ("users",)}, {"max_depth": 1}):
    assert plain(ours.list_namespaces(**settings)) == plain(theirs.list_namespaces(**settings))

for number in range(20):
    ours.put(("users", f"u{number}"), "food", {"text": f"pizza pizza u{number}"})
like = {"text": "I like pizza with olives and capers on Sundays"}
ours.put(("users", "u20"), "food", like)
ours.put(("users", "u20"), "sport", {"text": "I play chess.", "hours": 2})
assert [item.value for item in ours.search(("users", "u20"), query="pizza", limit=1)] == [like]
found = ours.search(("users",), query="pizza", filter={"hours": 2})
assert [item.key for item in found] == ["sport"], found
assert len(ours.search((), query="pizza", limit=50)) == len(VALUES) + 22
best = ours.search(("users",), query="Who lives in Oslo?", limit=1)[0]
assert (best.namespace, best.key) == (BOB, "home")

ours.put(BOB, "song", {"text": "Zoe hums, and there is nothing to keep."})
(best,) = ours.search((), query="What does Zoe hum?", limit=1)
assert (best.key, best.score and best.score > 0) == ("song", True), best
again = {"text": "Ann lives in Bern."}
_, put = asyncio.run(ours.abatch([PutOp(ANN, "home", again), GetOp(ANN, "home")]))
assert put.value == again
scores = {item.key: item.score for item in ours.search(ANN, query="Rome")}
assert scores["home"] < 0.5, scores  # the old text ranks no more
ours.delete(ANN, "home")
assert ours.get(ANN, "home") is None
assert all("Bern" not in str(item.value) for item in ours.search((), query="Bern", limit=50))
