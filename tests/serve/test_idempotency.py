"""``Idempotency-Key``: who repeats a request after a broken connection does not write twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from atommem.serve.api_keys import Keys
from atommem.serve.conversations import Conversations
from tests.serve.servers import Running, make_conversations, running
from tests.serve.test_conversations import items, log_of, serving

ONCE = {"Idempotency-Key": "8e03978e-40d5-43dd-bc93-6894a57f9324"}


def count(server: Running) -> tuple[int, int]:
    """Conversations, and events of all of them."""
    log = server.conversations.log
    held = log.all()
    return len(held), sum(len(log.events(about.id)) for about in held)


@pytest.mark.slow
def test_every_write_is_done_once(tmp_path: Path) -> None:
    with running(make_conversations(tmp_path / "log.db")) as server, server.http() as http:
        name = http.post("/v1/conversations", json=items("Ann lives in Rome.")).json()["id"]
        path = f"/v1/conversations/{name}"
        rated = http.post(
            "/v1/responses", json={"conversation": name, "input": "Where does Ann live?"}
        ).json()["id"]
        exported = http.get(f"{path}/export").text
        ask = {
            "conversation": name,
            "input": [{"content": "Bob sings."}, {"content": "Who sings?"}],
        }
        chat = {
            "conversation": name,
            "messages": [{"content": "Cid dances."}, {"content": "Who dances?"}],
        }
        for route, body in (
            ("/v1/conversations", items("Dan runs.")),
            (f"{path}/items", items("Eve reads.", "Eve writes.")),
            ("/v1/responses", ask),
            ("/v1/responses", {**ask, "stream": True}),
            ("/v1/chat/completions", chat),
            (f"{path}/entries/1", {"text": "Ann lives in Oslo."}),
            (f"{path}/feedback", {"response": rated, "reward": 1}),
            (f"{path}/fork", None),
            ("/v1/imports", exported),
        ):
            given: Any = {"content": body} if isinstance(body, str) else {"json": body}
            key = {"Idempotency-Key": f"{route} {'stream' in str(body)}"}
            before = count(server)
            first = http.post(route, headers=key, **given).raise_for_status()
            written = count(server)
            assert written > before, route
            again = http.post(route, headers=key, **given).raise_for_status()
            assert count(server) == written, route
            if "event-stream" in first.headers["content-type"]:
                assert again.text.count("event: response.completed") == 1
            else:
                one, two = first.json(), again.json()
                assert one.get("id") == two.get("id")
                assert one.get("data") == two.get("data")
                for kind in ("output", "choices"):
                    assert (one.get(kind) or [None])[-1] == (two.get(kind) or [None])[-1]


@pytest.mark.slow
def test_after_a_broken_connection_it_goes_on_where_it_was(tmp_path: Path) -> None:
    with serving(tmp_path / "log.db") as (gate, server, http):
        name = http.post("/v1/conversations", json={}).json()["id"]
        for route, body in (
            (f"/v1/conversations/{name}/items", items("Ann lives in Rome.")),
            ("/v1/responses", {"conversation": name, "input": "Where does Ann live?"}),
            ("/v1/responses", {"conversation": name, "input": "Where is Ann?", "stream": True}),
        ):
            key = {"Idempotency-Key": str(body)}
            gate.close_again()
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{server.url}{route}", json=body, headers=key, timeout=0.4)
            assert gate.cancelled.wait(5)
            gate.open.set()
            assert "Rome" in http.post(route, json=body, headers=key).raise_for_status().text
        kinds, _ = log_of(server.conversations, name)
        assert [kind for kind in kinds if kind != "step"] == [
            "item",
            "ask",
            "answer",
            "ask",
            "answer",
        ]


@pytest.mark.slow
def test_two_gateways_on_one_database_lose_nothing_and_what_is_sent_to_both_is_done_by_one(
    tmp_path: Path,
) -> None:
    """Both write to one conversation at the same time, from eight threads."""
    db = tmp_path / "log.db"
    with running(make_conversations(db)) as first, running(make_conversations(db)) as second:
        with first.http() as http:
            name = http.post("/v1/conversations", json=items("Ann lives in Rome.")).json()["id"]

        def send(number: int) -> str:
            gateway, request = (first, second)[number % 2], number // 4
            routes: list[tuple[str, dict[str, Any]]] = [
                (f"/v1/conversations/{name}/items", items(f"case {request} is closed")),
                ("/v1/responses", {"conversation": name, "input": "Who sings?"}),
                ("/v1/conversations", items("Cid dances.")),
            ]
            route, body = routes[request % 3]
            with gateway.http() as http:
                told = http.post(
                    route, json=body, headers={"Idempotency-Key": f"{request}"}
                ).raise_for_status()
                return str(told.json().get("id") or told.json()["data"][0]["id"])

        with ThreadPoolExecutor(8) as threads:
            ids = list(threads.map(send, range(72)))
        assert all(len(set(ids[start : start + 4])) == 1 for start in range(0, 72, 4))
        assert len(set(ids)) == 18
        kinds, seqs = log_of(first.conversations, name)
        assert [kinds.count(kind) for kind in ("item", "ask", "answer")] == [7, 6, 6]
        assert seqs == list(range(len(seqs)))
        held = first.conversations.log.memory_at(name).entries.values()
        cases = [f"case {request} is closed" for request in range(0, 18, 3)]
        assert sorted(entry.text for entry in held) == ["Ann lives in Rome.", *sorted(cases)]
        assert len(first.conversations.log.conversations()) == 7


def test_a_key_is_for_one_request_of_one_owner(conversations: Conversations) -> None:
    (_, ann), (_, bob) = Keys(conversations.log).add("ann"), Keys(conversations.log).add("bob")
    with running(conversations) as server, server.http(ann) as http, server.http(bob) as other:
        name = http.post("/v1/conversations", json={}, headers=ONCE).json()["id"]
        refused = http.post("/v1/conversations", json={"metadata": {}}, headers=ONCE)
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            422,
            "idempotency_key_reused",
        )
        assert (
            http.post(f"/v1/conversations/{name}/items", json=items("x"), headers=ONCE).status_code
            == 422
        )
        assert other.post("/v1/conversations", json={}, headers=ONCE).json()["id"] != name
        assert (
            http.post(
                "/v1/conversations", json={}, headers={"Idempotency-Key": "x" * 256}
            ).status_code
            == 400
        )
        http.delete(f"/v1/conversations/{name}").raise_for_status()
        assert http.post("/v1/conversations", json={}, headers=ONCE).json()["id"] != name, (
            "what is gone is gone"
        )
