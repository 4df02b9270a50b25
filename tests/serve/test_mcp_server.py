"""The MCP server, through the protocol's client over HTTP and standard input and output."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from atommem.errors import OutageError
from atommem.serve.mcp_server import make_mcp
from tests.serve.servers import (
    KEYS,
    GatedPolicy,
    Running,
    gated,
    items,
    make_conversations,
    new_conversation,
    opened,
    running,
    scripted,
    until,
)

ROOT = Path(__file__).parents[2]
STDIO = (
    "from pathlib import Path; from atommem.serve.mcp_server import serve_stdio; "
    "from tests.serve.servers import make_conversations; "
    "serve_stdio(make_conversations(Path('log.db')))"
)
FACT = "Ann lives in Rome and keeps bees."


@asynccontextmanager
async def http_client(server: Running, key: str = "none") -> AsyncIterator[Client]:
    async with (
        create_mcp_http_client(headers={"Authorization": f"Bearer {key}"}) as http,
        Client(streamable_http_client(f"{server.url}/mcp", http_client=http)) as client,
    ):
        yield client


@asynccontextmanager
async def connect(transport: str, folder: Path) -> AsyncIterator[Client]:
    if transport == "http":
        with running(make_conversations(folder / "log.db")) as server:
            async with http_client(server) as client:
                yield client
        return
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = StdioServerParameters(
        command=sys.executable, args=["-c", STDIO], env=environment, cwd=folder
    )
    async with Client(stdio_client(command)) as client:
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    result: Any = await client.call_tool(tool, arguments)
    if result.is_error:
        return result.content[0].text
    return result.structured_content.get("result", result.structured_content)


@pytest.mark.parametrize("transport", ["http", pytest.param("stdio", marks=pytest.mark.slow)])
async def test_tools_remember_recall_ask_and_forget(transport, tmp_path):
    async with connect(transport, tmp_path) as client:
        first = await call(client, "remember", text=FACT, name="bees", goal="Who keeps bees?")
        conversation = {"conversation": first["conversation"]}
        other = "Bob lives in Oslo."
        second = await call(client, "remember", text=other, name="oslo", **conversation)
        wrote = {"steps": 1, "written": {"create": 1, "update": 0, "delete": 0}, "cut": 0.0}
        assert second == {**conversation, "entries": 2, **wrote}
        found = await call(client, "recall", query="Oslo", **conversation)
        assert (found[0]["text"], found[0]["source"]) == (other, "oslo, chunk 1/1")
        answer = await call(client, "ask", question="Where does Ann live?", **conversation)
        assert (answer["answer"], answer["entries"][0]) == (FACT, FACT)
        given = {"text": "PIN 1234", "name": "pin", "verbatim": True, **conversation}
        assert (await call(client, "remember", **given))["entry"] == 3
        new = {"entry": 2, "text": "Bob lives in Bern.", "reason": "he moved"}
        assert (await call(client, "correct", **new, **conversation))["text"] == new["text"]
        assert await call(client, "forget", entry=2, **conversation) == {"entries": [2]}
        for name, entry in (("bees", 1), ("pin", 3)):
            assert await call(client, "forget", source=name, **conversation) == {"entries": [entry]}
        assert await call(client, "recall", query="Ann", **conversation) == []


async def test_errors_are_messages_and_crashes_reveal_nothing(conversations, monkeypatch, caplog):
    async with Client(make_mcp(conversations, "me")) as client:
        told = await call(client, "remember", text=FACT, goal=None, name=None)  # null is absent
        where = {"conversation": told["conversation"]}
        expected = "ask: question: Input should be a valid string."
        assert await call(client, "ask", question=5, **where) == expected
        assert "entry 7" in await call(client, "forget", entry=7, **where)

        def crash(*_: Any) -> None:
            raise RuntimeError("a secret")

        monkeypatch.setattr(conversations, "use", crash)
        assert "secret" not in await call(client, "ask", question="Who?", **where)
    assert "secret" not in caplog.text
    assert "RuntimeError" in caplog.text


async def test_share_that_limits_cut_is_told_when_a_text_is_read(tmp_path):
    with opened(tmp_path, scripted(entry_tokens=6)) as (found, http):
        routes = f"{new_conversation(http)}/items", "/v1/conversations"
        read = [http.post(route, json=items(FACT)).raise_for_status().json() for route in routes]
        async with http_client(found) as client:
            told = await call(client, "remember", text=FACT)
        assert [each["cut"] for each in read] == [told["cut"]] * 2
        assert 0.3 < told["cut"] < 0.9
        body = {"model": "scripted", "input": [{"content": FACT}, {"content": "Who keeps bees?"}]}
        steps = http.post("/v1/responses", json=body).raise_for_status().json()["output"][0]
        assert "create entry 1 (cut at its limit): Ann" in steps["summary"][0]["text"]


@pytest.mark.parametrize("goal", ["", "Who keeps bees?"])
async def test_reply_says_what_was_written_and_if_a_goal_was_missing(goal, tmp_path):
    model = scripted(lambda prompt: "nothing to keep")
    model.trained = {"environment": "atlas"}
    assert model.notice() == "trained in the environment atlas"
    model.trained = {"questions_shown": ["reading"]}
    assert "with the questions in view" in model.notice()
    with opened(tmp_path, model) as (found, http):
        path = new_conversation(http, goal=goal)
        replies = [http.post(f"{path}/items", json=items(FACT)).raise_for_status().json()]
        async with http_client(found) as client:
            replies.append(await call(client, "remember", text=FACT, goal=goal))
    for reply in replies:
        assert (reply["steps"], set(reply["written"].values())) == (1, {0})
        assert ("Without a goal" in reply.get("note", "")) == (not goal)


async def test_tools_do_not_reach_another_owner_s_conversation(conversations):
    with running(conversations, KEYS) as server:
        async with http_client(server, KEYS["ann"]) as client:
            conversation = (await call(client, "remember", text=FACT, name="bees"))["conversation"]
        calls = {"remember": "text", "recall": "query", "ask": "question", "forget": "source"}
        async with http_client(server, KEYS["bob"]) as client:
            for tool, argument in calls.items():
                arguments = {"conversation": conversation, argument: "bees"}
                assert "there is no conversation" in await call(client, tool, **arguments)
        assert len(conversations.log.memory_at(conversation)[0].entries) == 1


async def test_scopes_replace_conversation_ids_and_retries_write_once(tmp_path):
    policy = GatedPolicy()
    server = make_conversations(tmp_path / "log.db", scripted(policy=policy))
    server.log.create("me", {"user": "ann", "session": "1"}, prefix="resp_")  # of a response
    async with Client(make_mcp(server, "me")) as client:
        policy.error = OutageError("http://10.0.0.7 is gone")
        for _ in range(2):
            failed = await call(client, "remember", text=FACT, user="ann", session="1")
            assert "(conversation conv_" in failed
            assert "10.0.0.7" not in failed
        policy.error = None
        first = await call(client, "remember", text=FACT, user="ann", session="1")
        assert first["entries"] == 1, "the same text, told thrice"
        other = await call(client, "remember", text="Bob sings.", user="ann", session="2")
        assert other["conversation"] != first["conversation"]
        again = await call(client, "remember", text="Ann runs.", user="ann", session="1")
        assert (again["conversation"], again["entries"]) == (first["conversation"], 2)
        found = await call(client, "recall", query="bees", user="ann")
        assert (found[0]["text"], len(found)) == (FACT, 3)
        assert await call(client, "recall", query="bees", user="bob") == []
        answer = await call(client, "ask", question="Who sings?", user="ann", session="2")
        assert answer["answer"] == "Bob sings."
        nothing = await call(client, "ask", question="Who?", user="ann")
        assert (nothing["answer"], nothing["entries"]) == (None, [])
        assert "exactly this scope" in nothing["note"]
        assert "no such conversation" in await call(client, "forget", entry=1, user="ann")
        scoped = {"user": "ann", "session": "2", "entry": 1}
        assert (await call(client, "correct", text="Bob hums.", **scoped))["text"] == "Bob hums."
        assert await call(client, "forget", **scoped) == {"entries": [1]}
        wrong = {"user": "ann", "conversation": other["conversation"], "session": "1"}
        assert "not of this scope" in await call(client, "remember", text=FACT, **wrong)
        assert "no argument usr" in await call(client, "remember", text=FACT, usr="ann")
        gateway = make_mcp(make_conversations(tmp_path / "log.db"), "me")
        async with Client(gateway) as second:
            told = [
                call(each, "remember", text=f"{n} sings.", user="cid", goal="Who sings?")
                for n in range(3)
                for each in (client, second)
            ]
            assert len({each["conversation"] for each in await asyncio.gather(*told)}) == 1
            await call(second, "remember", text="Eve runs.", user="cid", goal="Who runs?")
        (info,) = server.log.conversations("me", where={"user": "cid"})
        assert info.metadata["goal"] == "Who runs?", "the newest goal"
        where = {"conversation": first["conversation"]}
        assert "nothing in this conversation" in await call(client, "forget", source="x", **where)
    assert len(server.log.conversations("me")) == 3


def test_call_repeated_after_the_client_s_time_out_writes_once(tmp_path):
    with gated(tmp_path / "log.db") as (gate, server, http):
        http.headers["Accept"] = "application/json, text/event-stream"
        log, places = server.conversations.log, []
        for name, arguments in (("remember", {"text": FACT}), ("ask", {"question": "Who?"})):
            params = {"name": name, "arguments": {**arguments, "user": "ann"}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            gate.shut()
            with pytest.raises(httpx.ReadTimeout):
                http.post("/mcp", json=body, timeout=httpx.Timeout(30, read=1.5))
            assert gate.cancelled.wait(10)
            until(lambda: not server.conversations.requests)  # the failure is recorded
            gate.open.set()
            assert FACT in http.post("/mcp", json=body).raise_for_status().text or not places
            places = log.conversations("local")
        assert [event.kind for event in log.items(places[0].id)] == ["item", "ask", "answer"]
        assert len(places) == 1
