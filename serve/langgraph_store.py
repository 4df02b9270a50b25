"""LangGraph's long-term memory in a served conversation: `AtomMemStore`, a `BaseStore` of its package.

    store = AtomMemStore("http://127.0.0.1:8765", conversation="conv_...", api_key="...")
    graph = builder.compile(store=store)

What an agent puts is read by the policy, which decides what the memory keeps of it; the value itself is kept as it was
put. `search` with a query ranks values by the entries that were written from them, as the policy would be shown them.
A value that is put again is read again: the policy brings the memory up to date, as it was trained to. `delete` takes
out what was written while the value was read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

import httpx
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

_TEXT = "text"


class AtomMemStore(BaseStore):
    """Values by namespace and key, as texts of one conversation.

    Args:
        url: The server, without ``/v1``.
        conversation: Whose memory; unset, a new one (`conversation` says which).
        api_key: The server's key.
        client: In the place of one that is made (tests).

    Values have no time to live, and are read as a whole: `index` of a put is not looked at.

    Raises:
        httpx.HTTPStatusError: The server refuses.
    """

    supports_ttl = False

    def __init__(
        self,
        url: str = "http://127.0.0.1:8765",
        conversation: str | None = None,
        api_key: str = "none",
        client: httpx.Client | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"}
        self._client = client or httpx.Client(base_url=url, headers=headers, timeout=600)
        self.conversation: str = (
            conversation or self._call("POST", "/v1/conversations", json={})["id"]
        )

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out operations in their order."""
        results: list[Result] = []
        held: InMemoryStore | None = None
        for op in ops:
            if isinstance(op, PutOp):
                self._put(op)
                held = None
                results.append(None)
                continue
            if held is None:
                held = self._held()
            results.append(
                self._searched(op, held)
                if isinstance(op, SearchOp) and op.query
                else _asked(op, held)
            )
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """The same, in a thread."""
        return await asyncio.to_thread(self.batch, list(ops))

    def _put(self, op: PutOp) -> None:
        name = _name(op.namespace, op.key)
        if op.value is not None:
            self._call(
                "POST",
                self._path("items"),
                json={"items": [{"content": _content(op.value), "name": name}]},
            )
            return
        for item in list(self._items()):
            if item.get("name") == name:
                self._call("DELETE", self._path(f"items/{item['id']}"))

    def _held(self) -> InMemoryStore:
        """All values as they were last put; LangGraph's own store then knows what its operations mean."""
        held = InMemoryStore()
        for item in self._items():
            if item.get("name"):
                namespace, key = _parts(item["name"])
                try:
                    held.put(
                        namespace, key, _value("\n".join(part["text"] for part in item["content"]))
                    )
                except InvalidNamespaceError:  # a text that another client gave
                    continue
                kept = held.get(namespace, key)
                assert kept is not None
                kept.updated_at = datetime.fromtimestamp(item.get("created_at", 0), UTC)
                kept.created_at = min(kept.created_at, kept.updated_at)
        return held

    def _searched(self, op: SearchOp, held: InMemoryStore) -> list[SearchItem]:
        """Values by the best of the entries that came from them."""
        (fitting,) = held.batch([op._replace(query=None, limit=10**9, offset=0)])
        assert isinstance(fitting, list)
        values = {
            (item.namespace, item.key): item for item in fitting if isinstance(item, SearchItem)
        }
        found = self._call("GET", self._path("recall"), params={"query": op.query})["data"]
        ranked: dict[tuple[tuple[str, ...], str], SearchItem] = {}
        for entry in found:
            name = ((entry.get("source") or {}).get("piece") or "").rpartition(", ")[0]
            place = _parts(name) if "/" in name else ((), "")
            if place in values and place not in ranked:
                values[place].score = entry["score"]
                ranked[place] = values[place]
        return list(ranked.values())[op.offset : op.offset + op.limit]

    def _items(self) -> Iterator[dict[str, Any]]:
        """The texts of the conversation, oldest first."""
        after = ""
        while True:
            page = self._call(
                "GET", self._path("items"), params={"order": "asc", "limit": 100, "after": after}
            )
            yield from page["data"]
            if not page["has_more"]:
                return
            after = page["last_id"]

    def _path(self, rest: str) -> str:
        return f"/v1/conversations/{self.conversation}/{rest}"

    def _call(self, method: str, path: str, **arguments: Any) -> Any:
        response = self._client.request(method, path, **arguments)
        response.raise_for_status()
        return response.json()


def _asked(op: GetOp | SearchOp | ListNamespacesOp, held: InMemoryStore) -> Result:
    (found,) = held.batch([op])
    return found


def _name(namespace: tuple[str, ...], key: str) -> str:
    """What the server calls a value: ``user/7/food``."""
    return "/".join(quote(part, safe="") for part in (*namespace, key))


def _parts(name: str) -> tuple[tuple[str, ...], str]:
    *namespace, key = (unquote(part) for part in name.split("/"))
    return tuple(namespace), key


def _content(value: dict[str, Any]) -> str:
    """A value as the policy reads it: ``{"text": ...}`` as that text, others as JSON."""
    text = value.get(_TEXT)
    if len(value) == 1 and isinstance(text, str) and text.strip() and _value(text) == value:
        return text
    return json.dumps(value, ensure_ascii=False)


def _value(content: str) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError:
        return {_TEXT: content}
    return value if isinstance(value, dict) else {_TEXT: content}
