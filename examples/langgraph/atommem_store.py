"""LangGraph's long-term memory in a served conversation: `AtomMemStore`.

The policy reads each value that is put and decides what to remember; the value itself is stored
unchanged. `search` with a query ranks values by the entries written from them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

import httpx
from langgraph.store.base import BaseStore, InvalidNamespaceError, Op, PutOp, Result, SearchOp
from langgraph.store.memory import InMemoryStore

_Place = tuple[tuple[str, ...], str]


class AtomMemStore(BaseStore):
    """Values by namespace and key, as texts of one conversation; `index` is ignored.

    Args:
        url: The server, without ``/v1``.
        conversation: Its conversation; default: a new one (see the attribute `conversation`).
        api_key: The server's key.
        client: Replaces the HTTP client.

    Raises:
        httpx.HTTPStatusError: The server refuses a request.
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
        created = conversation or self._send("POST", "/v1/conversations", json={})["id"]
        self.conversation: str = created
        self._path = f"/v1/conversations/{created}"

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations in order."""
        results: list[Result] = []
        for op in ops:
            if isinstance(op, PutOp):
                self._put(op)
                results.append(None)
            elif isinstance(op, SearchOp) and op.query:
                results.append(self._search(op))
            else:  # LangGraph's own store implements filters, order and namespaces
                results += self._values().batch([op])
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations in a thread."""
        return await asyncio.to_thread(self.batch, list(ops))

    def _put(self, op: PutOp) -> None:
        name = _name(op.namespace, op.key)
        if op.value is not None:
            item = {"content": _content(op.value), "name": name}
            self._send("POST", f"{self._path}/items", json={"items": [item]})
            return
        for item in list(self._items()):
            if item.get("name") == name:
                self._send("DELETE", f"{self._path}/items/{item['id']}")

    def _search(self, op: SearchOp) -> list[Any]:
        """Rank values by the best entry that came from each."""
        (matching,) = self._values().batch([op._replace(query=None, limit=10**9, offset=0)])
        values = {(item.namespace, item.key): item for item in matching}
        ranked: dict[_Place, Any] = {}
        for entry in self._send("GET", f"{self._path}/recall", params={"query": op.query})["data"]:
            piece = (entry.get("source") or {}).get("piece") or ""
            place = _place(piece.rpartition(", ")[0])
            if place in values and place not in ranked:
                values[place].score = entry["score"]
                ranked[place] = values[place]
        return list(ranked.values())[op.offset : op.offset + op.limit]

    def _values(self) -> InMemoryStore:
        """Return all values as they were last put."""
        store = InMemoryStore()
        for item in self._items():
            place = _place(item.get("name", ""))
            text = "\n".join(part["text"] for part in item["content"])
            try:
                store.put(*place, _value(text))
            except InvalidNamespaceError:  # a text of another client
                continue
            value: Any = store.get(*place)
            value.updated_at = datetime.fromtimestamp(item.get("created_at", 0), UTC)
            value.created_at = min(value.created_at, value.updated_at)
        return store

    def _items(self) -> Iterator[dict[str, Any]]:
        """Yield the texts of the conversation, oldest first."""
        query: dict[str, Any] = {"order": "asc", "limit": 100}
        while True:
            page = self._send("GET", f"{self._path}/items", params=query)
            yield from page["data"]
            if not page["has_more"]:
                return
            query["after"] = page["last_id"]

    def _send(self, method: str, path: str, **arguments: Any) -> Any:
        return self._client.request(method, path, **arguments).raise_for_status().json()


def _name(namespace: tuple[str, ...], key: str) -> str:
    return "/".join(quote(part, safe="") for part in (*namespace, key))


def _place(name: str) -> _Place:
    *namespace, key = (unquote(part) for part in name.split("/"))
    return tuple(namespace), key


def _content(value: dict[str, Any]) -> str:
    """Return the text to read: that of ``{"text": ...}``, other values as JSON."""
    text = value.get("text")
    if len(value) == 1 and isinstance(text, str) and text.strip() and _value(text) == value:
        return text
    return json.dumps(value, ensure_ascii=False)


def _value(content: str) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"text": content}
