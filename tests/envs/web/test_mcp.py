"""Tools of MCP servers: of a client of ours in place of the package's, and of a real one over stdio and HTTP."""

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
from atommem.envs.web.tools import ToolResult
from atommem.errors import ConfigError, OutageError
from atommem.observation import Observation, StopReason
from tests.envs.web.test_environment import ANSWER, call, play, use

pytest.importorskip("mcp")
ADDRESS = "https://a.test/mcp"
SCHEMA: Any = {"type": "object", "properties": {"pattern": {"type": "string", "pattern": "(a+)+$"}}}


class Servers:
    """Makes clients, each of which answers until it is broken."""

    def __init__(self, schema: Any = SCHEMA) -> None:
        self.schema, self.made, self.open = schema, 0, 0
        self.addresses: list[Any] = []
        self.names, self.more, self.endless = ["grep"], "", False
        self.parts: list[Any] = []

    def client(self, address: Any) -> Any:
        self.addresses.append(address)

        @asynccontextmanager
        async def connected() -> AsyncIterator[Any]:
            self.made, self.open = self.made + 1, self.open + 1
            made, number = SimpleNamespace(), self.made

            async def list_tools(cursor: Any) -> Any:
                listed = [
                    SimpleNamespace(name=one, description="", input_schema=self.schema)
                    for one in self.names
                ]
                return SimpleNamespace(tools=listed, next_cursor="more" if self.endless else None)

            async def call_tool(name: str, arguments: Any) -> Any:
                await asyncio.sleep(0.01 * arguments.get("late", 0))
                if number == 1:
                    raise ConnectionError(f"no way to {address}")
                parts = [SimpleNamespace(type="text", text="found" + self.more), *self.parts]
                return SimpleNamespace(content=parts, is_error=False)

            made.list_tools, made.call_tool = list_tools, call_tool
            try:
                yield made
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
    return McpSource(
        environment_config("web", tools=["mcp"], mcp_servers=list(addresses), **settings)
    )


def test_a_broken_connection_is_replaced_once_for_all_calls_and_none_is_left_open(
    servers: Servers,
) -> None:
    made = source(ADDRESS)

    async def run() -> list[Any]:
        try:
            return await asyncio.gather(
                *(made.tools[0].run({"late": late}, None) for late in range(8))
            )
        finally:
            assert servers.open == 1
            await made.close()

    assert [result.text for result in asyncio.run(run())] == ["found"] * 8
    assert (servers.made, servers.open) == (2, 0)


def test_a_key_is_named_in_the_settings_and_stands_nowhere_else(
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
    started = source("TOKEN=${MY_KEY} HOME=/x serve --fast")
    asyncio.run(started.close())
    parameters = servers.addresses[-1]
    assert (parameters.command, parameters.args) == ("serve", ["--fast"])
    assert (parameters.env["TOKEN"], parameters.env["HOME"]) == ("secret", "/x")


def test_a_resource_in_a_result_is_its_text_and_a_picture_is_named(servers: Servers) -> None:
    servers.parts = [
        SimpleNamespace(type="resource", resource=SimpleNamespace(text="a file")),
        SimpleNamespace(type="resource", resource=SimpleNamespace(blob="AA==")),
        SimpleNamespace(type="image", data="AA=="),
    ]
    servers.made = 1  # the first is a broken one
    assert use(source(ADDRESS), ("grep", {}))[0].text == "found\na file\n(resource)\n(image)"


def test_what_a_server_says_without_end_is_cut_or_refused_and_its_regular_expressions_are_left_to_it(
    servers: Servers,
) -> None:
    servers.more = "x" * 600_000
    made = source(ADDRESS)
    assert len(use(made, ("grep", {}))[0].text) == 500_000
    assert made.tools[0].schema["properties"] == {"pattern": {"type": "string"}}
    servers.endless = True
    with pytest.raises(ConfigError, match="more than 1000 tools"):
        source(ADDRESS)
    servers.endless = False
    for _ in range(5000):
        servers.schema = {"not": servers.schema}
    with pytest.raises(ConfigError, match="nested too deeply"):
        source(ADDRESS)


def test_a_replay_starts_no_server(servers: Servers, tmp_path: Path) -> None:
    def grep(**settings: Any) -> list[Observation]:
        settings = {"mcp_servers": [ADDRESS], "cassette": str(tmp_path / "c"), **settings}
        episode = play([call("grep", pattern="x"), ANSWER], tools=["mcp"], **settings)
        return [step.observation for step in episode.steps]

    recorded, made = grep(), servers.made
    for mode in ("replay", "frozen"):
        assert grep(cassette_mode=mode) == recorded
    assert servers.made == made
    with pytest.raises(ConfigError, match="holds no tools of mcp other"):
        grep(cassette_mode="replay", mcp_servers=["other"])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"properties": {"a": {"$ref": "#/nowhere"}}},
        {"properties": {"a": {"anyOf": [{"$ref": "file:///etc/passwd"}]}}},
        {"properties": {"a": {"$ref": "http://127.0.0.1:9/"}}},
        {"$dynamicRef": "#nowhere"},
    ],
)
def test_schemas_that_cannot_be_used(servers: Servers, schema: Any) -> None:
    servers.schema = schema
    with pytest.raises(ConfigError, match="grep has a schema"):
        make_sources(["mcp"], environment_config("web", tools=["mcp"], mcp_servers=[ADDRESS]))


def test_a_tool_with_the_name_of_an_action_of_ours_gets_another(servers: Servers) -> None:
    servers.names, servers.schema = ["read", "answer", "grep"], {"type": "object"}
    servers.made = 1  # the first is a broken one
    called = [call("mcp_read"), call("read"), ANSWER]
    episode = play(called, tools=["mcp"], mcp_servers=[ADDRESS])
    assert [action.kind for step in episode.steps for action in step.actions] == [
        "mcp_read",
        "answer",
    ]
    assert (
        "no tool 'read'; there are mcp_read, mcp_answer, grep"
        in episode.steps[1].problems[0].detail
    )
    assert not any(step.operations for step in episode.steps)


ALTERNATIVES = {
    f"a{number}": {"anyOf": [{"$ref": f"#/$defs/a{number + 1}"}] * 2} for number in range(40)
}
WITHIN = {
    "$id": "https://b.test/",
    "$defs": {"y": {}},
    "properties": {"x": {"$id": "c", "$ref": "#/$defs/y"}},
}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (
            {"$defs": {**ALTERNATIVES, "a40": {"type": "null"}}, "$ref": "#/$defs/a0"},
            "too much to be held against",
        ),
        (WITHIN, "PointerToNowhere"),
        ({"$ref": "#"}, "recursion"),
    ],
)
def test_a_schema_that_no_arguments_can_be_held_to_is_an_observation_and_takes_no_time(
    servers: Servers, schema: Any, said: str
) -> None:
    servers.schema = schema
    began = time.process_time()
    episode = play([call("grep", x="1"), ANSWER], tools=["mcp"], mcp_servers=[ADDRESS])
    assert time.process_time() - began < 5
    assert said in episode.steps[0].problems[0].detail
    assert episode.reward == 1.0


SCRIPT = Path(__file__).with_name("mcp_server.py")
STDIO = f"{sys.executable} {SCRIPT}"


@pytest.fixture
def url() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
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


@pytest.mark.slow  # every server takes seconds to start
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_an_episode_with_the_tools_of_a_server(
    transport: str, request: pytest.FixtureRequest
) -> None:
    server = STDIO if transport == "stdio" else request.getfixturevalue("url")
    completions = [
        call("lookup", name="Ann"),
        call("broken", name="luck"),
        call("lookup", nom="Ann"),
        ANSWER,
    ]
    episode = play(completions, tools=["mcp"], mcp_servers=[server])
    assert episode.reward == 1.0
    shown = [step.observation.values("text") for step in episode.steps]
    assert shown[1] == ["Ann lives in Oakrest."]
    assert "broken" in shown[2][0], "a tool that fails says so, and the episode goes on"
    assert "'name' is a required property" in shown[3][0]


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_silent_server_is_an_outage() -> None:
    with pytest.raises(OutageError, match="is silent for too long"):
        use(source(STDIO, tool_seconds=3.0), ("slow", {}))


@pytest.mark.slow
@pytest.mark.parametrize("status", [401, 429, 503])
def test_a_server_that_refuses_is_an_outage(url: str, status: int) -> None:
    refuse = f'<tool_call>{{"name": "refuse", "arguments": {{"status": {status}}}}}</tool_call>'
    episode = play(
        [refuse, call("lookup", name="Ann"), ANSWER],
        tools=["mcp"],
        mcp_servers=[url],
        tool_seconds=5.0,
    )
    assert (episode.stop_reason, episode.reward) == (StopReason.FAILED, None)
    assert url in str(episode.error)


@pytest.mark.slow
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
