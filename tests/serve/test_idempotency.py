"""``Idempotency-Key``: a repeated request writes once, on any gateway and after a kill."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.serve.servers import (
    KEYS,
    Running,
    entries,
    event_kinds,
    gated,
    items,
    make_conversations,
    new_conversation,
    running,
)
from tests.serve.test_conversations import send_and_leave


def count_rows(server: Running) -> tuple[int, int]:
    """Number of conversations and of their events."""
    log = server.conversations.log
    found = log.conversations()
    return len(found), sum(len(log.events(info.id)) for info in found)


@pytest.mark.slow
def test_every_write_with_a_key_happens_once(tmp_path: Path) -> None:
    with running(make_conversations(tmp_path / "log.db")) as server, server.http() as http:
        path = new_conversation(http, "Ann lives in Rome.")
        name = path.rpartition("/")[2]
        messages = [{"content": "Bob sings."}, {"content": "Who sings?"}]
        requests: list[tuple[str, dict[str, Any]]] = [
            ("/v1/conversations", items("Dan runs.")),
            (f"{path}/items", items("Eve reads.", "Eve writes.")),
            ("/v1/responses", {"conversation": name, "input": messages}),
            ("/v1/responses", {"conversation": name, "input": messages, "stream": True}),
            ("/v1/chat/completions", {"conversation": name, "messages": messages}),
            (f"{path}/entries/1", {"text": "Ann lives in Oslo."}),
            (f"{path}/fork", {}),
        ]
        for number, (route, body) in enumerate(requests):
            headers = {"Idempotency-Key": str(number)}
            before = count_rows(server)
            first = http.post(route, headers=headers, json=body).raise_for_status()
            written = count_rows(server)
            assert written > before, route
            again = http.post(route, headers=headers, json=body).raise_for_status()
            assert count_rows(server) == written, route
            if "stream" in body:
                assert again.text.count("event: response.completed") == 1
                continue
            one, two = first.json(), again.json()
            assert one.get("id") == two.get("id")
            assert one.get("data") == two.get("data")
            for kind in ("output", "choices"):
                assert (one.get(kind) or [None])[-1] == (two.get(kind) or [None])[-1]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_repeated_request_after_a_disconnect_continues(tmp_path: Path, stream: bool) -> None:
    with gated(tmp_path / "log.db") as (gate, server, http):
        path = new_conversation(http, "Ann lives in Rome.")
        body = {
            "conversation": path.rpartition("/")[2],
            "input": "Where does Ann live?",
            "stream": stream,
        }
        http.headers["Idempotency-Key"] = "once"
        send_and_leave(gate, f"{server.url}/v1/responses", body, {"Idempotency-Key": "once"})
        assert "Rome" in http.post("/v1/responses", json=body).raise_for_status().text
        kinds = event_kinds(server.conversations, path)
        assert [kind for kind in kinds if kind != "step"] == ["item", "ask", "answer"]


@pytest.mark.slow
def test_two_gateways_on_one_database_lose_and_repeat_nothing(tmp_path: Path) -> None:
    db = tmp_path / "log.db"
    with running(make_conversations(db)) as first, running(make_conversations(db)) as second:
        with first.http() as http:
            path = new_conversation(http, "Ann lives in Rome.")
        name = path.rpartition("/")[2]

        def send(number: int) -> str:
            gateway, request = (first, second)[number % 2], number // 4
            routes: list[tuple[str, dict[str, Any]]] = [
                (f"{path}/items", items(f"case {request} is closed")),
                ("/v1/responses", {"conversation": name, "input": "Who sings?"}),
                ("/v1/conversations", items("Cid dances.")),
            ]
            route, body = routes[request % 3]
            with gateway.http() as http:
                headers = {"Idempotency-Key": str(request)}
                found = http.post(route, json=body, headers=headers).raise_for_status().json()
            return str(found.get("id") or found["data"][0]["id"])

        with ThreadPoolExecutor(8) as threads:
            ids = list(threads.map(send, range(72)))
        assert all(len(set(ids[start : start + 4])) == 1 for start in range(0, 72, 4))
        assert len(set(ids)) == 18
        kinds = event_kinds(first.conversations, path)
        assert [kinds.count(kind) for kind in ("item", "ask", "answer")] == [7, 6, 6]
        cases = [f"case {request} is closed" for request in range(0, 18, 3)]
        with first.http() as http:
            found = sorted(entries(http, path).values())
        assert found == ["Ann lives in Rome.", *sorted(cases)]


def test_key_belongs_to_one_request_of_one_owner(tmp_path: Path) -> None:
    once = {"Idempotency-Key": "8e03978e-40d5-43dd-bc93-6894a57f9324"}
    owners = {key: owner for owner, key in KEYS.items()}
    with (
        running(make_conversations(tmp_path / "log.db"), owners) as server,
        server.http(KEYS["ann"]) as ann,
        server.http(KEYS["bob"]) as bob,
    ):
        name = ann.post("/v1/conversations", json={}, headers=once).json()["id"]
        reused = ann.post("/v1/conversations", json={"metadata": {}}, headers=once)
        assert reused.status_code == 422
        assert reused.json()["error"]["code"] == "idempotency_key_reused"
        assert bob.post("/v1/conversations", json={}, headers=once).json()["id"] != name
        ann.delete(f"/v1/conversations/{name}").raise_for_status()
        assert ann.post("/v1/conversations", json={}, headers=once).json()["id"] != name
