"""The memory's own routes: its past, forks, its owner's hand, what is erased, exported and imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from atommem.serve.conversations import Conversations
from atommem.serve.events import Event
from atommem.serve.transfer import exported, imported
from atommem.serve.wire import Message, item_body
from tests.serve.servers import Running, make_conversations, running, scripted

PARTS = ["Ann lives in Rome.", "Bob lives in Oslo.", "Cid sings."]


def made(http: httpx.Client, *texts: str, name: str = "", **metadata: str) -> str:
    parts = [{"type": "input_text", "text": text} for text in texts or PARTS]
    body: dict[str, Any] = {"items": [{"content": parts, "name": name}], "metadata": metadata}
    conversation: str = http.post("/v1/conversations", json=body).raise_for_status().json()["id"]
    return f"/v1/conversations/{conversation}"


def entries(http: httpx.Client, path: str, **query: Any) -> dict[int, str]:
    found = http.get(f"{path}/memory", params=query).raise_for_status().json()
    return {entry["id"]: entry["text"] for entry in found["entries"]}


def ask(http: httpx.Client, path: str, question: str) -> tuple[str, str]:
    """The id of a response, and what it says."""
    body = {"conversation": path.rpartition("/")[2], "input": question}
    found = http.post("/v1/responses", json=body).raise_for_status().json()
    return found["id"], found["output"][1]["content"][0]["text"]


def test_a_fork_goes_its_own_way_from_then_on(http: httpx.Client) -> None:
    path = made(http, goal="Where?")
    log = http.get(f"{path}/operations").json()["data"]
    second = next(line["seq"] for line in log if line.get("entry_id") == 2)
    forked = http.post(f"{path}/fork", params={"at": second}).raise_for_status().json()
    twin = f"/v1/conversations/{forked['id']}"
    assert forked["metadata"] == {"goal": "Where?"}
    assert entries(http, twin) == {1: PARTS[0]}
    assert ask(http, twin, "Where does Bob live?")[1] == PARTS[0], "it has nothing else"
    assert ask(http, path, "Where does Bob live?")[1] == PARTS[1]
    assert entries(http, f"/v1/conversations/{http.post(f'{path}/fork').json()['id']}") == entries(
        http, path
    )
    assert http.post(f"{path}/fork", params={"at": 10_000}).status_code == 400


def test_its_owner_edits_and_deletes_entries(http: httpx.Client) -> None:
    path = made(http)
    changed = http.post(f"{path}/entries/2", json={"text": "Bob lives in Bergen."}).json()["data"]
    assert [(line["kind"], line["actor"], line.get("before")) for line in changed] == [
        ("update", "user", PARTS[1])
    ]
    assert ask(http, path, "Where does Bob live?")[1] == "Bob lives in Bergen."
    http.delete(f"{path}/entries/1").raise_for_status()
    assert entries(http, path) == {2: "Bob lives in Bergen.", 3: PARTS[2]}
    assert http.delete(f"{path}/entries/1").status_code == 400
    assert http.post(f"{path}/entries/2", json={"text": " \n"}).status_code == 400
    log = http.get(f"{path}/operations", params={"limit": 1000}).json()["data"]
    assert [line["seq"] for line in log] == list(range(len(log)))
    assert [line["kind"] for line in log if line.get("actor") == "user"] == ["update", "delete"]


def test_steps_are_had_from_either_end(http: httpx.Client) -> None:
    steps = f"{made(http)}/steps"
    (last,) = http.get(steps, params={"before": 2**31 - 1, "limit": 1}).json()["data"]
    before = http.get(steps, params={"before": last["version"]}).json()["data"]
    assert [last["index"], *(step["index"] for step in before)] == [2, 1, 0]


def test_what_came_from_a_source_is_taken_out(http: httpx.Client) -> None:
    path = made(http, *PARTS[:2], name="https://bad.test/a?b=1")
    item = http.post(f"{path}/items", json={"items": [{"content": PARTS[2]}]}).json()["data"][0][
        "id"
    ]
    gone = http.delete(f"{path}/sources/https://bad.test/a%3Fb=1").raise_for_status().json()["data"]
    assert [line["entry_id"] for line in gone if line["kind"] == "delete"] == [1, 2]
    assert entries(http, path) == {3: PARTS[2]}
    http.delete(f"{path}/items/{item}").raise_for_status()
    assert entries(http, path) == {}
    assert item not in [found["id"] for found in http.get(f"{path}/items").json()["data"]]
    assert http.get(f"{path}/items/{item}").status_code == 404
    assert entries(http, path, at=1) == {1: PARTS[0]}, (
        "the log keeps it until the conversation is deleted"
    )
    # Of two texts of one name one is deleted.
    body = {"items": [{"content": text, "name": "letter"} for text in PARTS[:2]]}
    first, second = (item["id"] for item in http.post(f"{path}/items", json=body).json()["data"])
    (kept,) = (entry for entry, text in entries(http, path).items() if text == PARTS[1])
    http.delete(f"{path}/items/{first}").raise_for_status()
    assert entries(http, path) == {kept: PARTS[1]}
    assert http.get(f"{path}/items/{second}").status_code == 200


async def test_what_is_deleted_or_of_a_forgotten_name_is_not_read(
    conversations: Conversations,
) -> None:
    name = conversations.log.create("local", {}).id
    async with conversations.use(name, "local") as held:
        (item,) = await held.add([item_body(Message(content=PARTS[2]))])
        await held.note(Event("deleted", parent=item.version))
        assert held.log.unread == {}, "deleted and not read on in one commit"
    assert conversations.log.load(name, "local", "none").unread == {}
    async with conversations.use(name, "local", full=True) as held:
        await held.add([item_body(Message(content=text, name=text[:3])) for text in PARTS[:2]])
        await held.forget("Ann")
        await held.read()
        assert [entry.text for entry in held.session.memory.contents.entries.values()] == [PARTS[1]]
    assert conversations.log.load(name, "local", "none").unread == {}
    await conversations.close()


async def test_a_goal_that_another_gateway_set_holds_for_the_next_item(
    conversations: Conversations,
) -> None:
    about = conversations.log.create("local", {"goal": "Where is Ann?"})
    for goal in ("Where is Ann?", "Where is Bob?"):
        conversations.log.update(about.id, "local", {"goal": goal})
        async with conversations.use(about.id, "local") as held:
            (item,) = await held.add([item_body(Message(content=PARTS[0]))])
            assert item.body["questions"] == [goal]
    await conversations.close()


def test_an_export_of_one_that_goes_on_meanwhile_is_whole(
    http: httpx.Client, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, log = made(http), server.conversations.log
    events = log.events

    def and_then(conversation: str) -> list[Event]:
        monkeypatch.undo()
        found = events(conversation)
        http.post(f"{path}/items", json={"items": [{"content": "Dan runs."}]}).raise_for_status()
        return found

    monkeypatch.setattr(log, "events", and_then)
    lines = "".join(
        json.dumps(line) + "\n" for line in exported(log, path.rpartition("/")[2], "local")
    )
    assert imported(log, "local", lines)


def test_an_export_is_imported_as_it_was(http: httpx.Client, server: Running) -> None:
    """Written again with its letters as they are, as other programs do."""
    path = made(http, goal="Where?")
    ask(http, path, "Where does Bob live?")
    http.post(f"{path}/entries/3", json={"text": "Cid\u2028dances."}).raise_for_status()
    lines = http.get(f"{path}/export").raise_for_status().text.splitlines()
    text = "\n".join(json.dumps(json.loads(line), ensure_ascii=False) for line in lines)
    found = http.post(
        "/v1/imports", content=text.encode(), headers={"Content-Type": "application/x-ndjson"}
    )
    twin = f"/v1/conversations/{found.raise_for_status().json()['id']}"
    for route in ("memory", "operations", "steps"):
        first, second = (http.get(f"{name}/{route}").json() for name in (path, twin))
        first.pop("conversation", None), second.pop("conversation", None)
        assert first == second
    assert ask(http, twin, "Where does Cid dance?")[1] == "Cid\u2028dances."
    kinds = [event.kind for event in server.conversations.log.events(twin.rpartition("/")[2])]
    assert kinds[:6] == ["item", "step", "step", "step", "ask", "step"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [],
        lambda lines: ["null"],
        lambda lines: lines[1:],
        lambda lines: [lines[0].replace('"format": 1', '"format": 9'), *lines[1:]],
        lambda lines: [line for line in lines if '"seq": 0' not in line],
        lambda lines: [lines[0], *lines[2:]],
        lambda lines: [line.replace('"entry_id": 1', '"entry_id": 7') for line in lines],
        lambda lines: [line.replace('"parts"', '"part"') for line in lines],
        lambda lines: [
            line.replace('"prompt_tokens"', '"odd": 1e999, "prompt_tokens"') for line in lines
        ],
        lambda lines: [line.replace('"step": 1,', '"step": 0,') for line in lines],
        lambda lines: [line.replace('"version": 2', '"version": 99999999999') for line in lines],
        lambda lines: [
            line.replace('"step": 2,', '"step": 2147483647,') for line in lines
        ],  # no room to go on
        lambda lines: [*lines, "[" * 100_000],
    ],
)
def test_what_is_no_export_is_refused_whole(http: httpx.Client, damage: Any) -> None:
    lines = http.get(f"{made(http)}/export").text.splitlines()
    text = "\n".join(damage(lines))
    assert text != "\n".join(lines), "nothing is damaged"
    refused = http.post(
        "/v1/imports", content=text, headers={"Content-Type": "application/x-ndjson"}
    )
    assert refused.status_code == 400, refused.text
    assert "export" in refused.json()["error"]["message"]


def test_feedback_is_kept_with_its_answer(http: httpx.Client, server: Running) -> None:
    path, other = made(http), made(http)
    response = ask(http, path, "Where does Bob live?")[0]
    body = {"response": response, "reward": 1.0, "answer": "Oslo", "text": "right", "consent": True}
    assert http.post(f"{path}/feedback", json=body).raise_for_status().json()["reward"] == 1.0
    (event,) = server.conversations.log.events(path.rpartition("/")[2], ("feedback",))
    assert event.body == body
    assert http.post(f"{other}/feedback", json=body).status_code == 400
    assert http.post(f"{path}/feedback", json={**body, "reward": 2}).status_code == 400
    assert http.post(f"{path}/feedback", json={**body, "response": "resp_none"}).status_code == 404


async def test_conversations_move_to_another_checkpoint_and_embedder_on_request_or_all_at_once(
    tmp_path: Path,
) -> None:
    db = tmp_path / "log.db"
    with running(make_conversations(db)) as first, first.http() as http:
        path, *others = [made(http) for _ in range(3)]
        http.post("/v1/conversations", json={}).raise_for_status()
    moved = make_conversations(db, scripted(checkpoint="next", embedder_dim=64))
    with running(moved) as second, second.http() as http:
        refused = http.post(
            "/v1/responses", json={"conversation": path.rpartition("/")[2], "input": "Who?"}
        )
        assert refused.status_code == 409
        assert f"POST {path}/checkpoint" in refused.json()["error"]["message"]
        assert http.post(f"{path}/checkpoint").raise_for_status().json()["checkpoint"] == "next"
        assert ask(http, path, "Where does Bob live?")[1] == PARTS[1]
        log = http.get(f"{path}/operations").json()["data"]
        assert [line["checkpoint"] for line in log] == sorted(
            (line["checkpoint"] for line in log), reverse=True
        )
        (event,) = moved.log.events(path.rpartition("/")[2], ("checkpoint",))
        assert event.body["checkpoint"] == "scripted"
        assert entries(http, path, at=1) == {1: PARTS[0]}
    again = make_conversations(db, scripted(checkpoint="next", embedder_dim=64))
    assert await again.switch_checkpoints() == 2, "one is moved, one has nothing to move"
    assert await again.switch_checkpoints() == 0
    await again.close()
    with (
        running(make_conversations(db, scripted(checkpoint="next", embedder_dim=64))) as third,
        third.http() as http,
    ):
        assert [ask(http, name, "Where does Ann live?")[1] for name in (path, *others)] == [
            PARTS[0]
        ] * 3
