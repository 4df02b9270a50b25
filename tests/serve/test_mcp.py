"""The memory over MCP, asked by the protocol's own client over both transports."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.exceptions import MCPError

from atommem.serve.api_keys import Keys
from atommem.serve.conversations import Conversations
from atommem.serve.mcp_server import make_mcp
from tests.serve.servers import Running, make_conversations, running

ROOT = Path(__file__).parents[2]
STDIO = (
    "from pathlib import Path; from atommem.serve.mcp_server import serve_stdio; "
    "from tests.serve.servers import make_conversations; serve_stdio(make_conversations(Path('log.db')))"
)
FACTS = "Ann lives in Rome and keeps bees."


@asynccontextmanager
async def over_http(server: Running, key: str = "none") -> AsyncIterator[Client]:
    async with (
        create_mcp_http_client(headers={"Authorization": f"Bearer {key}"}) as http,
        Client(streamable_http_client(f"{server.url}/mcp", http_client=http)) as client,
    ):
        yield client


@asynccontextmanager
async def connected(transport: str, folder: Path) -> AsyncIterator[Client]:
    if transport == "http":
        with running(make_conversations(folder / "log.db")) as server:
            async with over_http(server) as client:
                yield client
        return
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = StdioServerParameters(
        command=sys.executable, args=["-c", STDIO], env=environment, cwd=folder
    )
    async with Client(stdio_client(started)) as client:
        yield client


async def called(client: Client, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content.get("result", result.structured_content)


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return str(result.content[0].text)  # type: ignore[union-attr]


@pytest.mark.parametrize("transport", ["http", pytest.param("stdio", marks=pytest.mark.slow)])
async def test_remember_recall_ask_forget(transport: str, tmp_path: Path) -> None:
    async with connected(transport, tmp_path) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert sorted(tools) == ["ask", "forget", "recall", "remember"]
        assert all(
            tool.description and "conversation" in tool.input_schema["properties"]
            for tool in tools.values()
        )
        first = await called(client, "remember", text=FACTS, name="bees", goal="Who keeps bees?")
        conversation = first["conversation"]
        assert (first["steps"], first["entries"]) == (1, 1)
        second = await called(
            client, "remember", text="Bob lives in Oslo.", conversation=conversation, name="oslo"
        )
        assert second == {"conversation": conversation, "steps": 1, "entries": 2}
        found = await called(client, "recall", conversation=conversation, query="Oslo")
        assert (found[0]["text"], found[0]["source"]) == ("Bob lives in Oslo.", "oslo, chunk 1/1")
        answered = await called(
            client, "ask", conversation=conversation, question="Where does Ann live?"
        )
        assert answered["answer"] == FACTS
        assert answered["entries"][0] == FACTS
        held = json.loads((await client.read_resource(f"memory://{conversation}")).contents[0].text)  # type: ignore[union-attr]
        assert [entry["text"] for entry in held["entries"]] == [FACTS, "Bob lives in Oslo."]
        assert await called(
            client, "forget", conversation=conversation, entry=held["entries"][1]["id"]
        ) == {"entries": [2]}
        assert await called(client, "forget", conversation=conversation, source="bees") == {
            "entries": [1]
        }
        assert await called(client, "recall", conversation=conversation, query="Ann") == []


async def test_what_is_wrong_is_said_in_words_and_a_crash_says_nothing(
    conversations: Conversations, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = list(logging.getLogger().handlers)
    async with Client(make_mcp(conversations, "me")) as client:
        conversation = (await called(client, "remember", text=FACTS))["conversation"]
        assert "blank" in await refused(client, "remember", text="  ")
        assert "at most 4096" in await refused(client, "remember", text=FACTS, goal="Who? " * 1000)
        assert "question" in await refused(client, "ask", conversation=conversation, question=" ")
        assert "not both" in await refused(client, "forget", conversation=conversation)
        assert "no entry 7" in await refused(client, "forget", conversation=conversation, entry=7)
        assert "no conversation" in await refused(
            client, "ask", conversation="conv_1", question="Who?"
        )
        with pytest.raises(MCPError, match="no conversation"):
            await client.read_resource("memory://conv_1")

        def crash(*_: Any) -> None:
            raise RuntimeError("a secret")

        monkeypatch.setattr(conversations, "use", crash)
        assert "secret" not in await refused(
            client, "ask", conversation=conversation, question="Who?"
        )
    assert "secret" not in caplog.text
    assert '"RuntimeError"' in caplog.text.replace("'", '"')
    assert (
        logging.getLogger().handlers == handlers
    )  # the package would add one, and log what users say
    await conversations.close()


async def test_another_owner_s_memory_is_not_there(conversations: Conversations) -> None:
    (_, ann), (_, bob) = (Keys(conversations.log).add(owner) for owner in ("ann", "bob"))
    with running(conversations) as server:
        async with over_http(server, ann) as client:
            conversation = (await called(client, "remember", text=FACTS, name="bees"))[
                "conversation"
            ]
        async with over_http(server, bob) as client:
            for tool, more in (
                ("remember", {"text": "x"}),
                ("recall", {"query": "x"}),
                ("ask", {"question": "x"}),
                ("forget", {"source": "bees"}),
            ):
                told = await refused(client, tool, conversation=conversation, **more)
                assert "there is no conversation" in told
                assert "bees" not in told
            with pytest.raises(MCPError, match="no conversation"):
                await client.read_resource(f"memory://{conversation}")
        with server.http("wrong") as client:
            assert client.post("/mcp", json={}).status_code == 401
        assert len(conversations.log.memory_at(conversation).entries) == 1
