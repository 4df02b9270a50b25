"""AtomMem's own routes: past, forks, edits, deletion, checkpoints, feedback."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from tests.serve.servers import (
    ask,
    entries,
    items,
    make_conversations,
    new_conversation,
    running,
    scripted,
)

PARTS = ["Ann lives in Rome.", "Bob lives in Oslo.", "Cid sings."]


def test_fork_at_an_operation_continues_on_its_own(http: httpx.Client) -> None:
    path = new_conversation(http, *PARTS, goal="Where?")
    log = http.get(f"{path}/operations").json()["data"]
    second = next(line["seq"] for line in log if line.get("entry_id") == 2)
    fork = http.post(f"{path}/fork", params={"at": second}).raise_for_status().json()
    twin = f"/v1/conversations/{fork['id']}"
    assert fork["metadata"] == {"goal": "Where?"}
    assert entries(http, twin) == entries(http, path, at=second) == {1: PARTS[0]}
    assert ask(http, twin, "Where does Bob live?")[1] == PARTS[0]
    assert ask(http, path, "Where does Bob live?")[1] == PARTS[1]
    whole = http.post(f"{path}/fork").json()["id"]
    assert entries(http, f"/v1/conversations/{whole}") == entries(http, path)
    assert http.post(f"{path}/fork", params={"at": 10_000}).status_code == 400


def test_owner_edits_and_deletes_entries(http: httpx.Client) -> None:
    path = new_conversation(http, *PARTS)
    changed = http.post(f"{path}/entries/2", json={"text": "Bob lives in Bergen."}).json()["data"]
    found = [(line["kind"], line["actor"], line["before"]) for line in changed]
    assert found == [("update", "user", PARTS[1])]
    assert ask(http, path, "Where does Bob live?")[1] == "Bob lives in Bergen."
    http.delete(f"{path}/entries/1").raise_for_status()
    assert entries(http, path) == {2: "Bob lives in Bergen.", 3: PARTS[2]}
    assert http.delete(f"{path}/entries/1").status_code == 400
    assert http.post(f"{path}/entries/2", json={"text": " \n"}).status_code == 400
    log = http.get(f"{path}/operations", params={"limit": 1000}).json()["data"]
    assert [line["seq"] for line in log] == list(range(len(log)))
    assert [line["kind"] for line in log if line.get("actor") == "user"] == ["update", "delete"]
    lines = [json.loads(line) for line in http.get(f"{path}/export").text.splitlines()]
    assert lines[0]["type"] == "conversation"
    exported = [line for line in lines if line.pop("type") == "operation"]
    assert exported == log


def test_steps_are_listed_from_either_end(http: httpx.Client) -> None:
    path = f"{new_conversation(http, *PARTS)}/steps"
    (last,) = http.get(path, params={"before": 2**31 - 1, "limit": 1}).json()["data"]
    before = http.get(path, params={"before": last["version"]}).json()["data"]
    assert [last["index"], *(step["index"] for step in before)] == [2, 1, 0]
    assert [step["index"] for step in http.get(path).json()["data"]] == [0, 1, 2]


def test_recall_returns_scored_entries_and_changes_nothing(http: httpx.Client) -> None:
    path = new_conversation(http, *PARTS)
    before = http.get(f"{path}/memory").json()
    found = http.get(f"{path}/recall", params={"query": "Oslo"}).json()["data"]
    assert found[0]["text"] == PARTS[1]
    assert found[0]["score"] > found[1]["score"]
    assert http.get(f"{path}/memory").json() == before


def test_deleted_source_and_item_take_their_entries_along(http: httpx.Client) -> None:
    path = new_conversation(http, *PARTS[:2], name="https://bad.test/a?b=1")
    item = http.post(f"{path}/items", json=items(PARTS[2])).json()["data"][0]["id"]
    gone = http.delete(f"{path}/sources/https://bad.test/a%3Fb=1").raise_for_status().json()["data"]
    assert [line["entry_id"] for line in gone if line["kind"] == "delete"] == [1, 2]
    assert entries(http, path) == {3: PARTS[2]}
    http.delete(f"{path}/items/{item}").raise_for_status()
    assert entries(http, path) == {}
    listed = http.get(f"{path}/items").json()["data"]
    assert item not in [found["id"] for found in listed]
    assert http.get(f"{path}/items/{item}").status_code == 404
    assert entries(http, path, at=1) == {1: PARTS[0]}, "the log keeps it"


async def test_conversations_switch_to_another_checkpoint_and_embedder(tmp_path: Path) -> None:
    db = tmp_path / "log.db"
    with running(make_conversations(db)) as first, first.http() as http:
        path, *others = [new_conversation(http, *PARTS) for _ in range(3)]
        new_conversation(http)
    switched = make_conversations(db, scripted(checkpoint="next", embedder_dim=64))
    with running(switched) as second, second.http() as http:
        body = {"conversation": path.rpartition("/")[2], "input": "Who?"}
        refused = http.post("/v1/responses", json=body)
        assert refused.status_code == 409
        assert f"POST {path}/checkpoint" in refused.json()["error"]["message"]
        assert http.post(f"{path}/checkpoint").raise_for_status().json()["checkpoint"] == "next"
        assert ask(http, path, "Where does Bob live?")[1] == PARTS[1]
        log = http.get(f"{path}/operations").json()["data"]
        used = [line["checkpoint"] for line in log]
        assert used == sorted(used, reverse=True)
        assert {*used} == {"scripted", "next"}
        assert entries(http, path, at=1) == {1: PARTS[0]}
    again = make_conversations(db, scripted(checkpoint="next", embedder_dim=64))
    assert await again.switch_checkpoints() == 2
    assert await again.switch_checkpoints() == 0
    with running(again) as third, third.http() as http:
        for name in (path, *others):
            assert ask(http, name, "Where does Ann live?")[1] == PARTS[0]


def test_delete_item_keeps_another_item_of_the_same_name(http: httpx.Client) -> None:
    path = new_conversation(http)
    for text in PARTS[:2]:
        http.post(f"{path}/items", json=items(text, name="letter")).raise_for_status()
    second, first = http.get(f"{path}/items").json()["data"]
    http.delete(f"{path}/items/{first['id']}").raise_for_status()
    assert entries(http, path) == {2: PARTS[1]}
    assert http.get(f"{path}/items/{second['id']}").status_code == 200
