"""Repeated requests write once, and what a server acknowledged survives kill -9.

`kills` starts two gateways on one database; `scripts/bench_kills.py` kills more often.
"""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from atommem.errors import OutageError
from atommem.serve import conversation_log
from tests.fakes import full_disk
from tests.serve.kills import DATABASES, kill_under_load
from tests.serve.servers import KEYS, Running, ask, entries, gated, items, new_conversation, opened


@pytest.mark.slow
@pytest.mark.parametrize("kind", DATABASES)
def test_two_gateways_under_load_write_once_and_lose_nothing_after_kill_9(kind):
    start, is_installed = DATABASES[kind]
    if not is_installed:
        pytest.skip(f"{kind} is not installed")
    # Not tmp_path: the user postgres cannot enter root's folders.
    with TemporaryDirectory() as folder, start(Path(folder)) as database:
        found = kill_under_load(database, kills=4)
    assert (found["lost"], found["doubled"]) == (0, 0), found
    assert found["errors"].keys() <= {"no answer", "503"}, found


@pytest.mark.slow
def test_full_disk_refuses_a_text_and_loses_none(tmp_path):
    with opened(tmp_path) as (_, http):
        path = new_conversation(http, "Ann lives in Rome.")
        with full_disk((tmp_path / "log.db-wal").stat().st_size):
            refused = http.post(f"{path}/items", json=items("Bob sings."))
        assert (refused.status_code, "Retry-After" in refused.headers) == (503, True)
        http.post(f"{path}/items", json=items("Bob sings.")).raise_for_status()
        assert [*entries(http, path).values()] == ["Ann lives in Rome.", "Bob sings."]


def test_key_belongs_to_one_request_of_one_owner_and_happens_once(tmp_path):
    once = {"Idempotency-Key": "8e03978e-40d5-43dd-bc93-6894a57f9324"}
    with (
        opened(tmp_path, keys=KEYS) as (server, _),
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
        path = new_conversation(ann, "Ann lives in Rome.")
        for route, body in (("entries/1", {"text": "x"}), ("fork", {})):
            once = {"Idempotency-Key": route}
            found = [ann.post(f"{path}/{route}", json=body, headers=once) for _ in range(2)]
            assert found[0].json() == found[1].json()
        assert len(server.conversations.log.conversations("ann")) == 3


@pytest.mark.slow
def test_request_that_is_sent_again_writes_once(tmp_path):
    """Each POST: with a key or a retry's header, after an outage and after a client was gone."""
    with gated(tmp_path / "log.db") as (gate, server, http):
        name = new_conversation(http).rpartition("/")[2]
        place: dict[str, Any] = {"conversation": name}
        routes: list[tuple[str, Callable[[list[Any]], dict[str, Any]]]] = [
            ("/v1/conversations", lambda new: {"items": new}),
            (f"/v1/conversations/{name}/items", lambda new: {"items": new}),
            ("/v1/responses", lambda new: {**place, "input": new}),
            ("/v1/responses", lambda new: {**place, "input": new, "stream": True}),
            ("/v1/responses", lambda new: {"input": new}),
            ("/v1/chat/completions", lambda new: {**place, "messages": new}),
        ]
        for number, (route, body_of) in enumerate(routes):
            written = {}
            for failure in ("none", "key", "retry", "outage", "gone"):
                before, headers = count_listed(server), {}
                told = f"Ann sings song {number} {failure}."
                body = body_of([{"content": told}, {"content": "Who sings?"}])
                if failure == "key":
                    headers = {"Idempotency-Key": told}
                if failure in ("key", "retry"):
                    first = http.post(route, json=body, headers=headers).raise_for_status()
                if failure == "retry":
                    headers = {"X-Stainless-Retry-Count": "1"}
                if failure == "outage":
                    gate.error = OutageError("gone")
                    for _ in range(2):
                        failed = http.post(route, json=body)
                        assert failed.status_code == 503 or "response.failed" in failed.text
                    gate.error = None
                if failure == "gone":
                    gate.shut()
                    with suppress(httpx.ReadTimeout):
                        http.post(route, json=body, timeout=httpx.Timeout(30, read=0.3))
                    assert gate.cancelled.wait(10)
                    time.sleep(0.5)  # until the failure is recorded
                    gate.open.set()
                    for asked in server.conversations.log.events(name, ("ask",))[-1:]:
                        left = http.get(f"/v1/responses/{asked.response}").json()
                        status = left["incomplete_details"] or left["status"]
                        assert status in ({"reason": "interrupted"}, "completed")
                again = http.post(route, json=body, headers=headers).raise_for_status()
                if headers and "stream" not in body:
                    assert again.json().get("id") == first.json().get("id")
                after = zip(count_listed(server), before, strict=True)
                written[failure] = [new - old for new, old in after]
            assert all(one == written["none"] for one in written.values()), (route, written)


def test_retry_whose_first_try_never_came_is_not_an_older_equal_request(tmp_path, monkeypatch):
    with opened(tmp_path) as (_, http):
        path, retry = new_conversation(http, "Ann lives in Rome."), {"X-Stainless-Retry-Count": "1"}
        body = {"conversation": path.rpartition("/")[2], "input": "Where does Ann live?"}
        http.post("/v1/responses", json=body).raise_for_status()
        http.post(f"{path}/entries/1", json={"text": "Ann lives in Oslo."}).raise_for_status()
        for seconds, expected in ((3600, "Rome"), (-1, "Oslo")):
            monkeypatch.setattr(conversation_log, "_RETRIED", seconds)
            answer = http.post("/v1/responses", json=body, headers=retry).json()["output"][-1]
            assert answer["content"][0]["text"] == f"Ann lives in {expected}."


def test_failed_response_is_continued_where_it_began(tmp_path):
    """In the memory of the earlier response, or in the branch that it made."""
    with gated(tmp_path / "log.db") as (gate, server, http):
        first = http.post("/v1/responses", json={"input": "I am Gus. Hi?"}).json()["id"]
        for question in ("Who am I?", "Who is Gus?"):
            body = {"input": [{"content": "Gus sings."}, {"content": question}]}
            body |= {"previous_response_id": first}
            gate.error = OutageError("gone")
            for _ in range(2):
                assert http.post("/v1/responses", json=body).status_code == 503
            gate.error, before = None, count_listed(server)
            answer = http.post("/v1/responses", json=body).raise_for_status().json()
            assert answer["status"] == "completed"
            written = zip(count_listed(server), before, strict=True)
            assert [new - old for new, old in written] == [0, 0, 0, 1]  # the answer


def test_copy_reads_what_is_unread_and_a_part_of_it_says_so(tmp_path):
    with gated(tmp_path / "log.db") as (gate, _, http):
        path = new_conversation(http, "Ann lives in Rome.", "Cid sings.")
        ask(http, path, "I am Gus. Hi?")
        gate.error = OutageError("gone")
        http.post(f"{path}/items", json=items("Bob runs."))
        gate.error = None
        for at, expected in (({}, ["completed", "in_progress"]), ({"at": 1}, ["incomplete"])):
            name = http.post(f"{path}/fork", params=at).json()["id"]
            copy = f"/v1/conversations/{name}"
            found = http.get(f"{copy}/items", params={"order": "asc"}).json()["data"]
            assert [item["status"] for item in found][-len(expected) :] == expected
            assert (ask(http, copy, "Who runs?")[1] == "Bob runs.") == (not at)


def test_last_response_of_a_branch_takes_its_memory_along(tmp_path):
    with opened(tmp_path) as (server, http):
        first = http.post("/v1/responses", json={"input": "I am Gus. Hi?"}).json()["id"]
        body = {"input": "Who am I?", "previous_response_id": first}
        others = [http.post("/v1/responses", json=body).json()["id"] for _ in range(3)]
        for response in (first, *others):
            http.delete(f"/v1/responses/{response}").raise_for_status()
        assert count_listed(server)[0] == 0


def count_listed(server: Running) -> list[int]:
    log = server.conversations.log
    found = log.conversations("local", prefix="")
    kinds = Counter(event.kind for info in found for event in log.items(info.id))
    return [len(found), *(kinds[kind] for kind in ("item", "ask", "answer"))]
