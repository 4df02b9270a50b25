"""LangGraph's long-term memory in a served conversation: `AtomMemStore`.

The policy reads each value that is put and decides what to remember; a value of which it keeps
nothing becomes an entry as it is. The value itself is stored unchanged, and one that is put again
replaces the earlier one with its entries. `search` with a query ranks values by their entries.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    Op,
    PutOp,
    Result,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore
from openai import BadRequestError, OpenAI

_Place = tuple[tuple[str, ...], str]


class AtomMemStore(BaseStore):
    """Values by namespace and key, as texts of one conversation; `index` is ignored.

    Args:
        url: The server, without ``/v1``.
        conversation: Its conversation; default: a new one (see the attribute `conversation`).
        api_key: The server's key.
        goal: For a new conversation: the questions that matter, one a line. A policy that was
            trained with the questions in view needs it.
        options: Of `openai.OpenAI`, which retries a server that is busy or restarts.

    Raises:
        openai.APIError: The server refuses a request.
    """

    supports_ttl = False

    def __init__(
        self,
        url: str = "http://127.0.0.1:8765",
        conversation: str | None = None,
        api_key: str = "none",
        goal: str = "",
        **options: Any,
    ) -> None:
        self._client = OpenAI(base_url=f"{url}/v1", api_key=api_key, timeout=600, **options)
        create = self._client.conversations.create
        self.conversation: str = conversation or create(metadata={"goal": goal}).id

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations in order."""
        results: list[Result] = []
        for op in ops:
            if isinstance(op, PutOp):
                self._put(op)
                results.append(None)
            elif isinstance(op, SearchOp) and op.query:
                results.append(self._search(op, op.query))
            else:  # LangGraph's own store implements filters, order and namespaces
                results += self._values(op).batch([op])
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations in a thread."""
        return await asyncio.to_thread(self.batch, list(ops))

    def _put(self, op: PutOp) -> None:
        items, name = self._client.conversations.items, _name(op.namespace, op.key)
        if op.value is not None:
            item: Any = {"content": _content(op.value), "name": name}
            earlier = {"replace": [name]}
            done: Any = items.create(
                self.conversation, items=[item], extra_headers=_once(), extra_body=earlier
            )
            if not done.written["create"] + done.written["update"]:
                body, options = {"text": item["content"], "name": name}, {"headers": _once()}
                path = f"/conversations/{self.conversation}/entries"
                with suppress(BadRequestError):  # a full memory: `search` puts the value last
                    self._client.post(path, cast_to=object, body=body | earlier, options=options)
            return
        for found in self._items(name):
            if found["name"] == name:
                items.delete(found["id"], conversation_id=self.conversation)

    def _search(self, op: SearchOp, query: str) -> list[Any]:
        """Rank values by the best entry that came from each; those without an entry come last."""
        everything = op._replace(query=None, limit=10**9, offset=0)
        query = query[:4000]  # the route's limit
        end, k = op.offset + op.limit, 2 * (op.offset + op.limit)
        path, ranked = f"/conversations/{self.conversation}/recall", dict[_Place, Any]()
        while True:
            params = {
                "query": query[:4000],
                "k": min(k, 10_000),
                "source": _prefix(op),
                "items": True,
            }
            page: Any = self._client.get(path, cast_to=object, options={"params": params})
            (matching,) = _store_of(page["items"]).batch([everything])
            values = {(item.namespace, item.key): item for item in matching}
            for entry in page["data"]:
                piece = (entry.get("source") or {}).get("piece") or ""
                place = _place(piece.rpartition(", ")[0])
                if place in values and place not in ranked:
                    values[place].score = entry["score"]
                    ranked[place] = values[place]
            if len(ranked) >= end:
                return list(ranked.values())[op.offset : end]
            if len(page["data"]) < params["k"] or k >= 10_000:
                break
            k *= 4
        (matching,) = self._values(op).batch([everything])
        rest = {(item.namespace, item.key): item for item in matching}
        return list((ranked | rest | ranked).values())[op.offset : end]

    def _values(self, op: Op) -> InMemoryStore:
        """Return the values that an operation may concern."""
        return _store_of(self._items(_prefix(op)))

    def _items(self, prefix: str) -> list[dict[str, Any]]:
        """Return the texts whose names begin with `prefix`, oldest first."""
        query = {"name": prefix}
        pages = self._client.conversations.items.list(
            self.conversation, order="asc", limit=100, extra_query=query
        )
        return [item.to_dict() for item in pages]


def _once() -> dict[str, str]:
    return {"Idempotency-Key": str(uuid4())}


def _store_of(items: Iterable[dict[str, Any]]) -> InMemoryStore:
    """Return a store of the values that texts hold, oldest first."""
    store = InMemoryStore()
    for item in items:
        place = _place(item.get("name", ""))
        text = "\n".join(part["text"] for part in item["content"])
        try:
            store.put(*place, _value(text))
        except InvalidNamespaceError:  # a text of another client
            continue
        value: Any = store.get(*place)
        value.created_at = value.updated_at = datetime.fromtimestamp(item["created_at"], UTC)
    return store


def _prefix(op: Op) -> str:
    if isinstance(op, GetOp):
        return _name(op.namespace, op.key)
    namespace = op.namespace_prefix if isinstance(op, SearchOp) else ()
    return _name(namespace, "") if namespace else ""


def _name(namespace: tuple[str, ...], key: str) -> str:
    parts = (part.replace("%", "%25").replace("/", "%2F") for part in (*namespace, key))
    return "/".join(parts)


def _place(name: str) -> _Place:
    *namespace, key = (unquote(part) for part in name.split("/"))
    return tuple(namespace), key


def _content(value: dict[str, Any]) -> str:
    """Return the text to read: that of ``{"text": ...}``, other values as JSON."""
    text = value.get("text")
    if len(value) == 1 and isinstance(text, str) and text.strip() and "\0" not in text:
        return text if _value(text) == value else json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)


def _value(content: str) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"text": content}
