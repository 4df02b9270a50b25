"""Tools of MCP servers, with a fake client and with real servers."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atommem.environment import environment_config
from atommem.envs.web import mcp_source
from atommem.envs.web.mcp_source import McpSource
from atommem.envs.web.sources import make_sources
from atommem.episode import Observation
from atommem.errors import ConfigError, OutageError
from tests.envs.web.browsing import ANSWER, call, play, use

pytest.importorskip("mcp")
ADDRESS = "https://a.test/mcp"


class Servers:
    """Makes clients; the first connection breaks at its first call."""

    def __init__(self) -> None:
        self.schema: Any = {"type": "object"}
        self.made = self.open = 0
        self.addresses: list[Any] = []
        self.names = ["grep"]

    def client(self, address: Any) -> Any:
        self.addresses.append(address)

        @asynccontextmanager
        async def connected() -> AsyncIterator[Any]:
            self.made, self.open = self.made + 1, self.open + 1
            number = self.made

            async def list_tools(cursor: Any) -> Any:
                tools = [
                    SimpleNamespace(name=name, description="", input_schema=self.schema)
                    for name in self.names
                ]
                return SimpleNamespace(tools=tools, next_cursor=None)

            async def call_tool(name: str, arguments: Any) -> Any:
                await asyncio.sleep(0.01 * arguments.get("late", 0))
                if number == 1:
                    raise ConnectionError(f"no way to {address}")
                parts = [
                    SimpleNamespace(type="text", text="found"),
                    SimpleNamespace(type="resource", resource=SimpleNamespace(text="a file")),
                    SimpleNamespace(type="image", data="AA=="),
                ]
                return SimpleNamespace(content=parts, is_error=False)

            try:
                yield SimpleNamespace(list_tools=list_tools, call_tool=call_tool)
            finally:
                self.open -= 1

        return connected()


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
    assert [result.text for result in results] == ["found\na file\n(image)"] * 8
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
        use(made, ("grep", {}))
    started = source("serve --key ${MY_KEY}")
    asyncio.run(started.close())
    parameters = servers.addresses[-1]
    assert (parameters.command, parameters.args) == ("serve", ["--key", "secret"])


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


def test_tool_with_an_invalid_schema_is_refused(servers: Servers) -> None:
    servers.schema = {"type": "nonsense"}
    with pytest.raises(ConfigError, match="grep: invalid JSON schema"):
        make_sources(["mcp"], environment_config("web", tools=["mcp"], mcp_servers=[ADDRESS]))


def test_tool_named_like_an_action_is_renamed(servers: Servers) -> None:
    servers.names, servers.made = ["read", "answer", "grep"], 1
    episode = play([call("mcp_read"), call("read"), ANSWER], tools=["mcp"], mcp_servers=[ADDRESS])
    kinds = [action.kind for step in episode.steps for action in step.actions]
    assert kinds == ["mcp_read", "answer"]
    assert "mcp_read, mcp_answer, grep" in episode.steps[1].problems[0].detail


SCRIPT = Path(__file__).with_name("mcp_server.py")
STDIO = f"{sys.executable} {SCRIPT}"


@pytest.fixture
def url() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(SCRIPT), str(port)], stderr=subprocess.DEVNULL)
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    yield f"http://127.0.0.1:{port}/mcp"
    process.kill()
    process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_episode_uses_the_tools_of_a_real_server(
    transport: str, request: pytest.FixtureRequest
) -> None:
    server = STDIO if transport == "stdio" else request.getfixturevalue("url")
    calls = [call("lookup", name="Ann"), call("broken", name="luck"), call("lookup", nom="Ann")]
    episode = play([*calls, ANSWER], tools=["mcp"], mcp_servers=[server], tool_seconds=20.0)
    shown = [step.observation.values("text") for step in episode.steps]
    assert shown[1] == ["Ann lives in Oakrest."]
    assert "broken" in shown[2][0]
    assert len(episode.steps[2].problems) == 1
    assert episode.reward == 1.0


def test_silent_server_is_an_outage(servers: Servers) -> None:
    servers.made = 1
    with pytest.raises(OutageError, match="does not answer"):
        use(source(ADDRESS, tool_seconds=0.05), ("grep", {"late": 100}))


def test_missing_server_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_source, "_WAIT_SECONDS", 0.01)
    with pytest.raises(ConfigError, match=r"out of reach.*Start the server"):
        source("http://127.0.0.1:9/mcp")
