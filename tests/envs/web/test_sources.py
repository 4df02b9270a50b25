"""Tools of MCP servers, and recorded calls: replayed, frozen, paid for, made into a corpus."""

import asyncio
import json
import sqlite3
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
from atommem.envs.web.recording import Recording
from atommem.envs.web.sources import make_sources
from atommem.envs.web.tools import Link, ToolResult
from atommem.episode import Episode, Observation, StopReason
from atommem.errors import BudgetSpentError, ConfigError, DataError, OutageError
from atommem.files import load_beside
from tests.envs.web.browsing import ANSWER, ENGINE, MADE, call, play, serving, use
from tests.fakes import command
from tests.loopback import answering

MCPError = pytest.importorskip("mcp").MCPError
ADDRESS = "https://a.test/mcp"
PARTS = [SimpleNamespace(type="text", text="found"), SimpleNamespace(type="image", data="AA==")]
TOOL = SimpleNamespace(name="grep", description="", input_schema={"type": "object"})


class Servers:
    """Makes clients; the first connection breaks at its first call."""

    def __init__(self) -> None:
        self.made = self.open = self.broken = 0
        self.addresses: list[Any] = []
        self.fault: Exception | None = None

    @asynccontextmanager
    async def client(self, address: Any) -> AsyncIterator[Any]:
        self.addresses.append(address)
        self.made, self.open = self.made + 1, self.open + 1
        number = self.made

        async def list_tools(cursor: Any) -> Any:
            if number == self.broken:
                raise self.fault or ConnectionError
            return SimpleNamespace(tools=[TOOL], next_cursor=None)

        async def call_tool(name: str, arguments: Any) -> Any:
            await asyncio.sleep(0.01 * arguments.get("late", 0))
            if number == 1:
                self.broken = 1
                raise self.fault or ConnectionError(f"no way to {address}")
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


SESSION_FAULTS = [  # of servers that restarted, in words of their own
    None,
    MCPError(-32600, "Session not found"),
    MCPError(-32001, "Session not found"),
    MCPError(-32000, "Bad Request: No valid session ID provided"),
    MCPError(-32602, "Received request before initialization was complete"),
    MCPError(-32004, "gone"),
]


@pytest.mark.parametrize("fault", SESSION_FAULTS)
def test_lost_session_is_replaced_once_for_all_calls(servers, fault):
    made, servers.fault = source(ADDRESS), fault

    async def run() -> list[Any]:
        calls = (made.tools[0].run({"late": late}, None) for late in range(8))
        results = await asyncio.gather(*calls)
        assert servers.open == 1
        await made.close()
        return results

    results = asyncio.run(run())
    assert [result.text for result in results] == ["found\n(image)"] * 8
    assert (servers.made, servers.open) == (2, 0)


def test_key_is_named_in_settings_and_redacted_in_errors(servers, monkeypatch):
    with pytest.raises(ConfigError, match="MY_KEY is not set"):
        source("https://a.test/mcp?key=${MY_KEY}")
    monkeypatch.setenv("MY_KEY", "secret")
    made = source("https://a.test/mcp?key=${MY_KEY}")
    assert servers.addresses == ["https://a.test/mcp?key=secret"]
    assert "secret" not in str(made.backend)
    monkeypatch.setattr(mcp_source, "_ATTEMPTS", 1)
    with pytest.raises(OutageError, match=r"no way to https://a\.test/mcp\?key=\$\{MY_KEY\}"):
        use([made], ("grep", {}))


def test_replay_starts_no_server(servers, tmp_path):
    def observations(mode: str, address: str = ADDRESS) -> list[Observation]:
        recording: dict[str, Any] = {"recording": str(tmp_path / "c"), "recording_mode": mode}
        calls = [call("grep", pattern="x"), ANSWER]
        episode = play(calls, tools=["mcp"], mcp_servers=[address], **recording)
        return [step.observation for step in episode.steps]

    recorded, made = observations("record"), servers.made
    assert observations("replay") == observations("frozen") == recorded
    assert servers.made == made
    with pytest.raises(ConfigError, match="contains no tools of mcp other"):
        observations("replay", "other")


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
def test_episode_uses_a_real_server_and_renames_a_tool_named_like_an_action(tmp_path):
    (tmp_path / "server.py").write_text(SERVER)
    server = f"{sys.executable} {tmp_path / 'server.py'}"
    calls = [call("mcp_read", name="Ann"), call("broken", name="x"), call("mcp_read", nom="Ann")]
    episode = play([*calls, ANSWER], tools=["mcp"], mcp_servers=[server], tool_seconds=20.0)
    shown = [step.observation.values("text") for step in episode.steps]
    assert shown[1] == ["Ann lives in Oakrest."]
    assert "broken" in shown[2][0]
    assert len(episode.steps[2].problems) == 1
    assert episode.reward == 1.0


def test_silent_server_is_an_outage_and_connected_again(servers):
    servers.made = 1
    made = source(ADDRESS, tool_seconds=0.05)

    async def run() -> ToolResult:
        servers.broken, servers.fault = 2, TimeoutError()
        with pytest.raises(OutageError, match="does not answer"):
            await made.tools[0].run({"late": 100}, None)
        result = await made.tools[0].run({}, None)
        await made.close()
        return result

    assert asyncio.run(run()).text == "found\n(image)"
    assert servers.made == 3


def test_result_without_text_shows_its_structure_or_links():
    link = SimpleNamespace(type="resource_link", name="ann", uri="https://a.test/ann")
    empty = SimpleNamespace(type="text", text="")
    assert [mcp_source._part_text(part) for part in (link, empty)] == ["ann https://a.test/ann", ""]
    only = SimpleNamespace(content=[], structured_content={"town": "Rome"})
    assert mcp_source._result_text(only) == '{"town": "Rome"}'


def test_missing_server_is_a_config_error(monkeypatch):
    monkeypatch.setattr(mcp_source, "_WAIT_SECONDS", 0.01)
    with pytest.raises(ConfigError, match=r"out of reach.*Start the server"):
        source("http://127.0.0.1:9/mcp")


CALL = ("search", "engine 1", {"query": "Ann", "n": 1})
RESULT = ToolResult("Ann \ud800 lives", False, "Ann", (Link("Bob", "b"),), "https://a.test/")


@pytest.fixture(autouse=True)
def _none_made() -> None:
    MADE.clear()


def search(path: Path, *queries: str, **more: Any) -> list[ToolResult | BaseException]:
    async def run() -> list[ToolResult | BaseException]:
        config = environment_config("web", tools=[ENGINE], recording=str(path), **more)
        (source,) = make_sources(config.tools, config)
        calls = [source.tools[0].run({"query": query}, None) for query in queries]
        results = await asyncio.gather(*calls, return_exceptions=True)
        await source.close()
        return results

    return asyncio.run(run())


def test_equal_calls_are_made_once_and_replayed(tmp_path):
    queries = [*["Ann"] * 8, "Bob", "nothing"]
    results = search(tmp_path / "c.db", *queries)
    for mode in ("record", "replay", "frozen"):
        assert results == search(tmp_path / "c.db", *queries, recording_mode=mode)
    assert sorted(MADE) == ["Ann", "Bob", "nothing"], "a missing page is recorded too"
    for _ in range(2):
        assert [str(one) for one in search(tmp_path / "c.db", "gone", "gone")] == ["no engine"] * 2
    assert MADE[-2:] == ["gone"] * 2, "an outage is shared and not recorded"
    (missing,) = search(tmp_path / "c.db", "new", recording_mode="replay")
    assert isinstance(missing, OutageError)
    (absent,) = search(tmp_path / "c.db", "new", recording_mode="frozen")
    assert isinstance(absent, ToolResult)
    assert absent.is_error


def test_call_budget_is_never_exceeded_and_recorded_calls_are_free(tmp_path):
    results = search(tmp_path / "c.db", "a", "b", "c", call_budget=2)
    assert len(MADE) == 2
    assert [type(one) for one in results].count(BudgetSpentError) == 1
    assert search(tmp_path / "c.db", MADE[0], call_budget=2)[0] in results


def test_episode_replays_equally_except_for_hosts_denied_now(tmp_path):
    def episode(**more: Any) -> Episode:
        calls = [call("search", query=query) for query in ("Ann", "nothing")]
        return play([*calls, ANSWER], tools=[ENGINE], recording=str(tmp_path / "c.db"), **more)

    recorded, replayed = episode(), episode(recording_mode="replay")
    observations = [[step.observation for step in one.steps] for one in (recorded, replayed)]
    assert observations[0] == observations[1]
    assert observations[0][1].values("text") == ["found Ann"]
    denied = episode(deny_hosts=["Ann.test"])
    assert denied.steps[1].observation.values("text") == ["https://Ann.test/ may not be visited."]


def test_damaged_or_foreign_file_is_refused(tmp_path):
    path = tmp_path / "c.db"
    recording = Recording(path)
    recording.add(*CALL, RESULT)
    recording.close()
    assert Recording(path, read_only=True).find(*CALL) == RESULT
    with sqlite3.connect(path) as file:
        file.execute("UPDATE calls SET result = ?", [b"no zlib"])
    with pytest.raises(DataError, match="is damaged"):
        Recording(path, read_only=True).find(*CALL)
    (tmp_path / "text.db").write_text("no database " * 100)
    with pytest.raises(DataError, match="not a recording"):
        Recording(tmp_path / "text.db")


@pytest.mark.slow
def test_corpus_of_a_recording_has_its_visited_pages(tmp_path):
    pytest.importorskip("tantivy")
    path, web = tmp_path / "c.db", tmp_path / "web"
    recording = Recording(path)
    recording.add(*CALL, ToolResult("Ann: a", links=(Link("Ann", "https://a.test/"),)))
    for page, result in {
        "http://a.test": ToolResult("Ann Gray lives.", title="Ann Gray", origin="https://a.test/"),
        "https://b.test/": ToolResult("Bob wrote to Ann Gray.", title="Bob"),
        "https://gone.test/": ToolResult("answers 404.", is_error=True),
    }.items():
        recording.add("visit", "engine", {"page": page}, result)
    recording.close()
    build = ["build", "--recording", "--input", str(path), "--output_dir", str(web)]
    assert command("corpus")(build) == 0
    (source,) = make_sources(["corpus"], environment_config("web", corpus=str(web)))
    visits = [("visit", {"page": page}) for page in ("http://a.test", "https://a.test/", "Bob")]
    found, requested, origin, bob = use([source], ("search", {"query": "who lives"}), *visits)
    assert found.links[0].title == "Ann Gray"
    assert requested.text == origin.text == "Ann Gray lives."
    assert [link.title for link in bob.links] == ["Ann Gray"]


DENIED = "https://huggingface.co/datasets/x"
HIT = Link("Ann Gray", "https://a.test/")
PAGE = ToolResult("Ann lives.", False, "Ann", (Link("Bob", "https://b.test/"),), "https://a.test/")
LINKS = [{"title": "Bob", "url": "https://b.test/"}]


def ask(tool: str, path: str, answer: Any, *texts: str, **settings: Any) -> tuple[Any, list[Any]]:
    with serving({path: answering(answer, "application/json")}, "127.0.0.1") as (host, asked):
        url = f"http://{host}"
        config = environment_config("web", tools=[tool], search_url=url, reader_url=url, **settings)
        return use(make_sources([tool], config), *texts), asked


CASES = load_beside(__file__, "providers.yaml")


@pytest.mark.parametrize(("tool", "line", "answer", "text", "body"), CASES["searches"])
def test_search_shows_allowed_results(tool, line, answer, text, body, monkeypatch):
    monkeypatch.setenv("ATOMMEM_SERPER_API_KEY", "my-key")
    path = line.split()[1].partition("?")[0]
    (result,), asked = ask(tool, path, answer, "who is Ann", search_results=2)
    assert (result.text, result.links[0]) == (text, HIT)
    ((sent, headers, raw),) = asked
    assert (sent, json.loads(raw) if raw else None) == (line, body)
    assert headers.get("X-API-KEY") == ("my-key" if tool == "serper" else None)
    assert "Authorization" not in headers


def test_jina_sends_key_and_refuses_denied_pages(monkeypatch):
    monkeypatch.setenv("ATOMMEM_JINA_API_KEY", "my-key")
    data = {"title": "Ann", "url": "https://a.test/", "content": "Ann lives."}
    data |= {"links": {"Bob": "https://b.test/"}}
    pages = (DENIED, "https://huggingface.co\\datasets", "http://[", "//a", "https://a.test/")
    (*denied, result), asked = ask("jina", "/", {"data": data}, *pages)
    assert all(one.is_error for one in denied)
    assert result == PAGE
    ((line, headers, body),) = asked
    assert (line, json.loads(body)) == ("POST /", {"url": "https://a.test/"})
    assert (headers["Authorization"], headers["Accept"]) == ("Bearer my-key", "application/json")


def test_access_reads_pages_and_refuses_denied_ones():
    page = {"url": "https://a.test/", "title": "Ann", "contents": "Ann lives.", "links": LINKS}
    answer = {"result": [page]}
    (denied, result), asked = ask("access", "/access", answer, DENIED, "https://a.test/")
    assert (denied.is_error, result) == (True, PAGE)
    assert [json.loads(body) for _, _, body in asked] == [{"urls": ["https://a.test/"]}]


LONG = ["jina", {"data": {"content": "x" * 2000}}, "an answer of more than 0.001 MB (502)", True]


@pytest.mark.parametrize(("tool", "answer", "text", "is_error"), [*CASES["unusual"], LONG])
def test_unusual_answer_is_read(tool, answer, text, is_error):
    path = {"searxng": "/search", "serper": "/search", "jina": "/"}.get(tool, f"/{tool}")
    asked = "https://a.test/" if tool == "jina" else "Ann"
    (result,), _ = ask(tool, path, answer, asked, page_megabytes=0.001)
    assert (result.text, result.is_error) == (text, is_error)


@pytest.mark.slow
@pytest.mark.parametrize(("tool", "status", "answer", "shown", "requests"), CASES["faults"])
def test_provider_fault_is_an_outage_and_refusal_an_observation(
    tool, status, answer, shown, requests
):
    visit, search = call("visit", page="https://a.test/"), call("search", query="Ann")
    written = visit if tool in ("jina", "access") else search
    route = answering(answer, "application/json", status)
    with serving({"/search": route, "/access": route, "/": route}, "127.0.0.1") as (host, asked):
        url = f"http://{host}"
        settings = {"search_url": url, "reader_url": url, "tool_retries": 1}
        episode = play([written, ANSWER], tools=[tool], **settings)
    assert len(asked) == requests
    if not shown:
        assert (episode.stop_reason, episode.reward) == (StopReason.FAILED, None)
        assert url in str(episode.error)
    else:
        assert episode.stop_reason is StopReason.ANSWERED
        (text,) = episode.steps[1].observation.values("text")
        assert shown in text
        assert "secret" not in text
