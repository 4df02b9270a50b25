"""Tools of MCP servers, with a fake client and with a real server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atommem.environment import environment_config
from atommem.envs.web import mcp_source
from atommem.envs.web.mcp_source import McpSource
from atommem.episode import Observation
from atommem.errors import ConfigError, OutageError
from tests.envs.web.browsing import ANSWER, call, play, use

pytest.importorskip("mcp")
ADDRESS = "https://a.test/mcp"
PARTS = [SimpleNamespace(type="text", text="found"), SimpleNamespace(type="image", data="AA==")]
TOOL = SimpleNamespace(name="grep", description="", input_schema={"type": "object"})


class Servers:
    """Makes clients; the first connection breaks at its first call."""

    def __init__(self) -> None:
        self.made = self.open = 0
        self.addresses: list[Any] = []

    @asynccontextmanager
    async def client(self, address: Any) -> AsyncIterator[Any]:
        self.addresses.append(address)
        self.made, self.open = self.made + 1, self.open + 1
        number = self.made

        async def list_tools(cursor: Any) -> Any:
            return SimpleNamespace(tools=[TOOL], next_cursor=None)

        async def call_tool(name: str, arguments: Any) -> Any:
            await asyncio.sleep(0.01 * arguments.get("late", 0))
            if number == 1:
                raise ConnectionError(f"no way to {address}")
            return SimpleNamespace(content=PARTS, is_error=False)

        try:
            yield SimpleNamespace(list_tools=list_tools, call_tool=call_tool)
        finally:
            self.open -= 1


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    made = Servers()
    monkeypatch.setattr("mcp.Client", made.client)
    monkeypatch.setattr(mcp_source, "_WAIT_SECONDS", 0.01)
    return made


def source(*addresses: str, **settings: Any) -> McpSource:
    config = environment_config("web", tools=["mcp"], mcp_servers=list(addresses), **settings)
    return McpSource(config)


def test_broken_connection_is_replaced_once_for_all_calls(servers: Servers) -> None:
    made = source(ADDRESS)

    async def run() -> list[Any]:
        try:
            calls = (made.tools[0].run({"late": late}, None) for late in range(8))
            return await asyncio.gather(*calls)
        finally:
            assert servers.open == 1
            await made.close()

    results = asyncio.run(run())
    assert [result.text for result in results] == ["found\n(image)"] * 8
    assert (servers.made, servers.open) == (2, 0)


def test_key_is_named_in_settings_and_redacted_in_errors(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="MY_KEY is not set"):
        source("https://a.test/mcp?key=${MY_KEY}")
    monkeypatch.setenv("MY_KEY", "secret")
    made = source("https://a.test/mcp?key=${MY_KEY}")
    assert servers.addresses == ["https://a.test/mcp?key=secret"]
    assert "secret" not in str(made.backend)
    monkeypatch.setattr(mcp_source, "_ATTEMPTS", 1)
    with pytest.raises(OutageError, match=r"no way to https://a\.test/mcp\?key=\$\{MY_KEY\}"):
        use([made], ("grep", {}))


def test_replay_starts_no_server(servers: Servers, tmp_path: Path) -> None:
    def observations(**more: Any) -> list[Observation]:
        settings = {"mcp_servers": [ADDRESS], "recording": str(tmp_path / "c"), **more}
        episode = play([call("grep", pattern="x"), ANSWER], tools=["mcp"], **settings)
        return [step.observation for step in episode.steps]

    recorded, made = observations(), servers.made
    for mode in ("replay", "frozen"):
        assert observations(recording_mode=mode) == recorded
    assert servers.made == made
    with pytest.raises(ConfigError, match="contains no tools of mcp other"):
        observations(recording_mode="replay", mcp_servers=["other"])


SERVER = """
from mcp.server import MCPServer

server = MCPServer("facts")

@server.tool()
def read(name: str) -> str:
    return f"{name} lives in Oakrest."

@server.tool()
def broken(name: str) -> str:
    raise ValueError(f"no {name} today")

server.run("stdio")
"""


@pytest.mark.slow
def test_episode_uses_a_real_server_and_renames_a_tool_named_like_an_action(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    server = f"{sys.executable} {tmp_path / 'server.py'}"
    calls = [call("mcp_read", name="Ann"), call("broken", name="x"), call("mcp_read", nom="Ann")]
    episode = play([*calls, ANSWER], tools=["mcp"], mcp_servers=[server], tool_seconds=20.0)
    shown = [step.observation.values("text") for step in episode.steps]
    assert shown[1] == ["Ann lives in Oakrest."]
    assert "broken" in shown[2][0]
    assert len(episode.steps[2].problems) == 1
    assert episode.reward == 1.0


def test_silent_server_is_an_outage(servers: Servers) -> None:
    servers.made = 1
    with pytest.raises(OutageError, match="does not answer"):
        use([source(ADDRESS, tool_seconds=0.05)], ("grep", {"late": 100}))


def test_missing_server_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_source, "_WAIT_SECONDS", 0.01)
    with pytest.raises(ConfigError, match=r"out of reach.*Start the server"):
        source("http://127.0.0.1:9/mcp")
