"""``Idempotency-Key``: a repeated request writes once, on any gateway and after a kill."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.servers import (
    KEYS,
    Running,
    event_kinds,
    gated,
    items,
    make_conversations,
    new_conversation,
    running,
    until,
)


def count_rows(server: Running) -> tuple[int, int]:
    """Number of conversations and of their events."""
    log = server.conversations.log
    found = log.conversations("local")
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
            else:
                one, two = first.json(), again.json()
                assert [one.get(key) for key in ("id", "data")] == [
                    two.get(key) for key in ("id", "data")
                ]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_request_repeated_after_a_disconnect_continues_the_turn(
    tmp_path: Path, stream: bool
) -> None:
    with gated(tmp_path / "log.db") as (gate, server, http), ThreadPoolExecutor(1) as threads:
        path = new_conversation(http, "Ann lives in Rome.")
        name = path.rpartition("/")[2]
        body = {"conversation": name, "input": "Where does Ann live?", "stream": stream}
        http.headers["Idempotency-Key"] = "once"
        gate.shut()
        timeout = httpx.Timeout(30, read=2)
        sent = threads.submit(http.post, "/v1/responses", json=body, timeout=timeout)
        assert gate.entered.wait(20)
        assert isinstance(sent.exception(), httpx.ReadTimeout)
        assert gate.cancelled.wait(10)
        gate.open.set()
        log = server.conversations.log
        until(lambda: log.events(name, ("ask",)))
        (question,) = log.events(name, ("ask",))
        found = http.get(f"/v1/responses/{question.response}").json()
        assert found["incomplete_details"] == {"reason": "interrupted"}
        assert "Rome" in http.post("/v1/responses", json=body).raise_for_status().text
        kinds = event_kinds(server.conversations, path)
        assert [kind for kind in kinds if kind != "step"] == ["item", "ask", "answer"]


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
