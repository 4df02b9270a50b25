"""Tools of a real MCP server, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atommem.environment import environment_config
from atommem.envs.web.mcp_source import McpSource
from atommem.envs.web.tools import ToolResult
from atommem.errors import ConfigError, OutageError
from atommem.observation import StopReason
from tests.envs.web.test_environment import ANSWER, call, play, use

pytest.importorskip("mcp")
pytestmark = pytest.mark.slow  # every server takes seconds to start
SCRIPT = Path(__file__).with_name("mcp_server.py")
STDIO = f"{sys.executable} {SCRIPT}"


@pytest.fixture
def url() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(SCRIPT), str(port)], stderr=subprocess.DEVNULL)
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    yield f"http://127.0.0.1:{port}/mcp"
    process.terminate()
    process.wait()


def source(*servers: str, **settings: Any) -> McpSource:
    return McpSource(environment_config("web", tools=["mcp"], mcp_servers=list(servers), **settings))


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_an_episode_with_the_tools_of_a_server(transport: str, request: pytest.FixtureRequest) -> None:
    server = STDIO if transport == "stdio" else request.getfixturevalue("url")
    completions = [call("lookup", name="Ann"), call("broken", name="luck"), call("lookup", nom="Ann"), ANSWER]
    episode = play(completions, tools=["mcp"], mcp_servers=[server])
    assert episode.reward == 1.0
    shown = [step.observation.values("text") for step in episode.steps]
    assert shown[1] == ["Ann lives in Oakrest."]
    assert "broken" in shown[2][0], "a tool that fails says so, and the episode goes on"
    assert "'name' is a required property" in shown[3][0]


def test_a_server_that_dies_is_an_outage_and_is_started_again_for_the_next_call() -> None:
    made = source(STDIO)
    tools = {tool.name: tool for tool in made.tools}

    async def run() -> ToolResult:
        with pytest.raises(OutageError, match="mcp_server"):
            await tools["crash"].run({}, None)
        try:
            return await tools["lookup"].run({"name": "Bob"}, None)
        finally:
            await made.close()

    assert asyncio.run(run()).text == "Bob lives in Fenford."


def test_a_silent_server_is_an_outage() -> None:
    with pytest.raises(OutageError, match="is silent for too long"):
        use(source(STDIO, tool_seconds=3.0), ("slow", {}))


@pytest.mark.parametrize("status", [401, 429, 503])
def test_a_server_that_refuses_is_an_outage(url: str, status: int) -> None:
    refuse = f'<tool_call>{{"name": "refuse", "arguments": {{"status": {status}}}}}</tool_call>'
    episode = play([refuse, call("lookup", name="Ann"), ANSWER], tools=["mcp"], mcp_servers=[url], tool_seconds=5.0)
    assert (episode.stop_reason, episode.reward) == (StopReason.FAILED, None)
    assert url in str(episode.error)


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        ([], "mcp_servers is empty"),
        (["http://127.0.0.1:9/mcp"], "is out of reach.*Start the server"),
        ([f"{sys.executable} -c pass"], "Start the server, or correct mcp_servers"),
    ],
)
def test_servers_that_cannot_be_used(servers: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        source(*servers)
