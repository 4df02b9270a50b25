"""Calls that are recorded, shared between episodes and processes, replayed, and paid for."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import zstandard

from atommem.environment import environment_config
from atommem.envs.web.net import cassette as cassettes
from atommem.envs.web.net.cassette import Budget, Cassette, RecordedCall
from atommem.envs.web.net.freeze import freeze
from atommem.envs.web.net.recording import Recorder
from atommem.envs.web.sources import make_sources
from atommem.envs.web.tools import Link, Tool, ToolResult, ToolSource, text_tool
from atommem.envs.web.web_cli import main
from atommem.episode import Episode
from atommem.errors import BudgetSpentError, ConfigError, DataError, OutageError
from tests.envs.web.test_environment import ANSWER, call, play, use

CALL = RecordedCall.of("search", "engine 1", {"query": "Ann"})
RESULT = ToolResult("Ann \ud800 lives", False, "Ann", (Link("Bob", "b"),), "https://a.test/")
RESULT_VALUES = {"text": "", "is_error": False, "title": "", "links": [], "origin": ""}
MADE: list[str] = []


def zipped(values: Any) -> bytes:
    return zstandard.compress(json.dumps(values).encode())


class Engine(ToolSource):
    """Counts the calls that it gets."""

    backend = "engine 1"

    @property
    def tools(self) -> list[Tool]:
        """One."""

        async def run(query: str, task: Any) -> ToolResult:
            MADE.append(query)
            await asyncio.sleep(0.05)
            if query == "gone":
                raise OutageError("the engine is gone")
            return ToolResult(
                f"found {query}", is_error=query == "nothing", origin=f"https://{query}.test/"
            )

        return [text_tool("search", "Finds.", "query", "Words.", run)]


ENGINE = "tests.envs.web.net.test_cassette:Engine"


@pytest.fixture(autouse=True)
def _none_made() -> None:
    MADE.clear()


def settings(path: Path, **more: Any) -> dict[str, Any]:
    return {"tools": [ENGINE], "cassette": str(path), **more}


def search(path: Path, *queries: str, **more: Any) -> list[ToolResult | BaseException]:
    """What the queries give, all asked at once."""

    async def run() -> list[ToolResult | BaseException]:
        config = environment_config("web", **settings(path, **more))
        (source,) = make_sources(config.tools, config)
        run = source.tools[0].run
        try:
            return await asyncio.gather(
                *(run({"query": query}, None) for query in queries), return_exceptions=True
            )
        finally:
            await source.close()

    return asyncio.run(run())


def test_what_is_recorded_comes_back_as_it_was(tmp_path: Path) -> None:
    cassette = Cassette(tmp_path / "c.db")
    assert cassette.found(CALL) is None
    assert cassette.begin(CALL, 0) is True
    assert cassette.begin(CALL, 0) is False, "it is being made"
    cassette.end(CALL, RESULT)
    assert cassette.begin(CALL, 0) == cassette.found(CALL) == RESULT
    assert list(cassette.results()) == [(CALL, RESULT)]
    other = RecordedCall.of("search", "engine 2", {"query": "Ann"})
    assert cassette.found(other) is None, "another backend, another answer"
    assert RecordedCall.of("a", "b", {"x": 1, "y": 2}) == RecordedCall.of(
        "a", "b", {"y": 2, "x": 1}
    )


def test_calls_that_are_alike_are_made_once_and_never_again(tmp_path: Path) -> None:
    queries = [*["Ann"] * 8, "Bob", "nothing"]
    results = search(tmp_path / "c.db", *queries)
    for mode in ("live", "replay", "frozen"):
        assert results == search(tmp_path / "c.db", *queries, cassette_mode=mode)
    (missing,) = search(tmp_path / "c.db", "new", cassette_mode="replay")
    assert isinstance(missing, OutageError)
    assert "does not hold search" in str(missing)
    (absent,) = search(tmp_path / "c.db", "new", cassette_mode="frozen")
    assert isinstance(absent, ToolResult)
    assert absent.is_error
    assert sorted(MADE) == ["Ann", "Bob", "nothing"], "also what was found missing is recorded"


def test_an_outage_is_shared_by_those_who_waited_and_is_not_recorded(tmp_path: Path) -> None:
    results = search(tmp_path / "c.db", *["gone"] * 4)
    assert [str(result) for result in results] == ["the engine is gone"] * 4
    assert MADE == ["gone"]
    search(tmp_path / "c.db", "gone")
    assert MADE == ["gone"] * 2, "who comes later asks again"


def test_a_call_of_a_process_that_was_killed_is_made_again_at_once(tmp_path: Path) -> None:
    code = (
        "import sys, time; from atommem.envs.web.net.cassette import Cassette, RecordedCall;"
        "Cassette(sys.argv[1]).begin(RecordedCall.of('search', 'engine 1', {'query': 'Ann'}), 0);"
        "print('begun', flush=True); time.sleep(60)"
    )
    path = tmp_path / "c.db"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    cassette = Cassette(path)
    assert cassette.begin(CALL, 0) is False
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert cassette.begin(CALL, 0) is True


def test_a_lease_that_is_not_renewed_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cassette = Cassette(tmp_path / "c.db")
    assert cassette.begin(CALL, 0) is True
    monkeypatch.setattr(cassettes, "_lives", lambda holder: True)
    assert cassette.begin(CALL, 0) is False
    later = time.time() + cassettes.LEASE_SECONDS
    monkeypatch.setattr(time, "time", lambda: later + 1)
    assert cassette.begin(CALL, 0) is True
    cassette.renew(CALL)
    cassette.fail(CALL, "gone")
    with pytest.raises(OutageError, match=r"^gone$"):
        cassette.begin(CALL, later)


def test_a_call_that_is_cancelled_is_let_go(tmp_path: Path) -> None:
    async def run() -> None:
        recorder = Recorder(environment_config("web", **settings(tmp_path / "c.db")))
        making = asyncio.create_task(recorder.call(CALL, lambda: asyncio.sleep(60)))
        await asyncio.sleep(0.1)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making

        async def made() -> ToolResult:
            return RESULT

        assert await recorder.call(CALL, made) == RESULT
        recorder.close()

    asyncio.run(run())


def test_a_budget_of_calls_and_of_money_is_never_exceeded_and_what_is_recorded_stays(
    tmp_path: Path,
) -> None:
    results = search(tmp_path / "c.db", "a", "b", "c", call_budget=2)
    assert sorted(MADE) == ["a", "b"]
    assert isinstance(results[2], BudgetSpentError)
    assert search(tmp_path / "c.db", "a", call_budget=2) == results[:1], (
        "what is recorded costs nothing"
    )
    prices = {"call_prices": ["search=0.1"], "cost_budget": 0.3}
    results = search(tmp_path / "d.db", "a", "b", "c", "d", **prices)
    assert [type(result) for result in results] == [ToolResult] * 3 + [BudgetSpentError]
    cassette = Cassette(tmp_path / "d.db", Budget(), read_only=True)
    assert cassette.spent() == {"search": (3, pytest.approx(0.3))}


def test_an_episode_replays_as_it_was_but_for_what_is_denied_now_and_a_spent_budget_stops_it(
    tmp_path: Path,
) -> None:
    def episode(name: str, **more: Any) -> Episode:
        calls = [call("search", query=query) for query in ("Ann", "nothing")]
        return play([*calls, ANSWER], **settings(tmp_path / name, **more))

    live, replayed = (episode("c.db", cassette_mode=mode) for mode in ("live", "replay"))
    assert [step.observation for step in live.steps] == [
        step.observation for step in replayed.steps
    ]
    assert MADE == ["Ann", "nothing"]
    denied = episode("c.db", cassette_mode="replay", deny_hosts=["ann.test"])
    assert live.steps[1].observation.values("text") == ["found Ann"]
    assert denied.steps[1].observation.values("text") == ["https://Ann.test/ may not be visited."]
    with pytest.raises(BudgetSpentError, match=r"call_budget is spent: 1 calls .* Give more"):
        episode("d.db", call_budget=1)


def test_who_has_let_a_lease_run_out_changes_nothing_of_what_another_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Cassette(tmp_path / "c"), Cassette(tmp_path / "c")
    monkeypatch.setattr(cassettes, "LEASE_SECONDS", -1.0)
    assert first.begin(CALL, 0.0) is True
    monkeypatch.setattr(cassettes, "_holder", lambda: f"elsewhere {os.getpid()}")
    assert second.begin(CALL, 0.0) is True
    second.end(CALL, RESULT)
    monkeypatch.undo()
    first.renew(CALL)
    first.fail(CALL, "too slow")
    first.end(CALL, ToolResult("another answer"))
    first.release(CALL)
    assert second.found(CALL) == RESULT


def strangers(path: Path, *, state: str = "done", **columns: Any) -> Path:
    """A cassette with one call that nobody made."""
    Cassette(path).close()
    values = {
        "key": CALL.key,
        "tool": CALL.tool,
        "backend": CALL.backend,
        "arguments": CALL.arguments,
        "state": state,
    }
    values |= {
        "holder": None,
        "until": None,
        "time": 1e12,
        "result": zipped(RESULT_VALUES | {"title": "T"}),
        **columns,
    }
    with sqlite3.connect(path) as file:
        file.execute(
            f"INSERT INTO calls ({', '.join(values)}) VALUES ({'?, ' * (len(values) - 1)}?)",
            [*values.values()],
        )
    file.close()
    return path


def record(path: Path, *recorded: tuple[RecordedCall, ToolResult]) -> Path:
    """A cassette with these calls."""
    cassette = Cassette(path)
    for made, result in recorded:
        cassette.begin(made, 0.0)
        cassette.end(made, result)
    cassette.close()
    return path


BOMB = zstandard.compress(b"0" * 100_000_000)


WRONG = {
    "text": [5],
    "title": [None],
    "origin": [[1]],
    "is_error": ["no"],
    "links": [[5], [{"target": 5}]],
}
NOT_RESULTS = [RESULT_VALUES | {name: value} for name, values in WRONG.items() for value in values]


@pytest.mark.parametrize(
    ("state", "result"),
    [
        *(
            (state, result)
            for state in ("done", "failed")
            for result in (b"no zstd", BOMB, None, 5)
        ),
        *(("done", zipped(values)) for values in ([1], *NOT_RESULTS)),
    ],
)
def test_a_result_that_is_damaged_or_a_bomb_is_said(
    tmp_path: Path, state: str, result: Any
) -> None:
    with pytest.raises(DataError, match="is damaged"):
        Cassette(strangers(tmp_path / "c", state=state, result=result)).begin(CALL, 0.0)


def test_a_strangers_call_that_is_never_made_is_ours_to_make(tmp_path: Path) -> None:
    never: tuple[dict[str, Any], ...] = (
        {},
        {"until": "soon", "holder": b"\x00"},
        {"until": 1e300, "holder": "elsewhere 1"},
        {"until": time.time() + 20, "holder": f"{socket.gethostname()} {'9' * 30}"},
        {"state": "no state", "time": "never"},
    )
    for number, columns in enumerate(never):
        path = strangers(tmp_path / str(number), **{"state": "made", **columns})
        assert Cassette(path).begin(CALL, 0.0) is True, columns


def test_a_strangers_outage_is_no_long_story_its_arguments_are_some_and_its_names_move_no_cursor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story = zstandard.compress(b"gone " * 1_000_000)
    with pytest.raises(OutageError) as said:
        Cassette(strangers(tmp_path / "a", state="failed", result=story)).begin(CALL, 0.0)
    assert len(str(said.value)) == 1000
    for number, arguments in enumerate(("{", "[1]", "5", "[" * 100_000)):
        cassette = Cassette(strangers(tmp_path / f"b{number}", arguments=arguments), read_only=True)
        with pytest.raises(DataError, match="is damaged"):
            freeze(cassette, tmp_path / "out")
    path = strangers(tmp_path / "c", tool="\x1b[2Jsearch", backend=5)
    with sqlite3.connect(path) as file:
        file.execute("INSERT INTO spent VALUES ('\x1b[5m', 'many', 'much')")
    assert main(["show", str(path)]) == 0
    assert "\x1b" not in (shown := capsys.readouterr().out)
    assert "1 \ufffd[2Jsearch of 5" in shown


RUNNING = (
    "DROP TABLE calls; CREATE VIEW calls AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) "
    "SELECT i AS key, i AS result FROM n WHERE i > 1",
    "CREATE TRIGGER t AFTER UPDATE ON calls BEGIN DELETE FROM calls; END",
)


def test_files_that_are_no_cassettes_or_damaged_or_run_something_of_their_own(
    tmp_path: Path,
) -> None:
    (tmp_path / "text.db").write_text("no database " * 100)
    sqlite3.connect(tmp_path / "other.db").executescript("CREATE TABLE x (y)").close()
    for number, statement in enumerate(RUNNING):
        sqlite3.connect(strangers(tmp_path / f"runs {number}")).executescript(statement).close()
    for name, read_only, error, message in (
        ("none.db", True, ConfigError, "there is no cassette"),
        ("nowhere/c.db", False, ConfigError, "cannot be opened"),
        ("other.db", True, DataError, "cannot be used: no such table"),
        *(("text.db", read_only, DataError, "is no cassette") for read_only in (True, False)),
        *(
            (f"runs {n}", only, DataError, "it holds a trigger or a view")
            for n in (0, 1)
            for only in (True, False)
        ),
    ):
        with pytest.raises(error, match=message):
            Cassette(tmp_path / name, read_only=read_only)
    texts = [f"page {number} " + "".join(map(chr, range(40, 40 + number))) for number in range(200)]
    record(
        tmp_path / "c",
        *((RecordedCall.of("visit", "e", {"page": text}), ToolResult(text)) for text in texts),
    )
    content = (tmp_path / "c").read_bytes()
    half = len(content) // 2
    (tmp_path / "c").write_bytes(content[:half] + b"\xaa" * (half - 4096) + content[-4096:])
    with pytest.raises(DataError, match="cannot be used"):
        list(Cassette(tmp_path / "c", read_only=True).results())


def test_a_cassette_in_a_folder_that_cannot_be_written_is_replayed() -> None:
    with TemporaryDirectory() as folder:
        record(Path(folder) / "c", (CALL, RESULT))
        os.chmod(folder, 0o555)
        child = os.fork()
        if child == 0:  # not as root, who may write anywhere
            try:
                if os.geteuid() == 0:
                    os.setuid(65534)
                os._exit(Cassette(f"{folder}/c", read_only=True).found(CALL) != RESULT)
            finally:
                os._exit(2)
        status = os.waitpid(child, 0)[1]
        os.chmod(folder, 0o755)
    assert status == 0


def visited(page: str, text: str, title: str, **more: Any) -> tuple[RecordedCall, ToolResult]:
    return RecordedCall.of("visit", "engine", {"page": page}), ToolResult(text, title=title, **more)


def test_a_cassette_becomes_a_corpus_that_can_be_searched_and_visited_and_grows_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tantivy")
    cassette, web = record(tmp_path / "c.db"), tmp_path / "web"
    with pytest.raises(ConfigError, match="nothing to freeze"):
        freeze(Cassette(cassette), web)
    links = (Link("Ann", "https://a.test/"), Link("C", "https://c.test/"))
    record(
        cassette,
        (CALL, ToolResult("Ann: a", links=links)),
        visited("http://a.test", "Ann Gray lives here.", "Ann Gray", origin="https://a.test/"),
        visited("https://b.test/", "Bob wrote to Ann Gray.", "Bob", origin="https://b.test/"),
        visited("https://gone.test/", "https://gone.test/ answers 404.", "", is_error=True),
    )
    assert main(["freeze", str(cassette), "--out", str(web)]) == 0
    assert "2 pages. 1 that were found were not read" in capsys.readouterr().out
    (source,) = make_sources(
        ["corpus"], environment_config("web", tools=["corpus"], corpus=str(web))
    )
    visits = [
        ("visit", {"page": page}) for page in ("http://a.test", "https://a.test/", "Bob", "x")
    ]
    found, asked, origin, bob, missing = use(
        source, ("search", {"query": "who lives here"}), *visits
    )
    assert found.links[0].title == "Ann Gray"
    assert asked.text == origin.text == "Ann Gray lives here."
    assert (asked.title, asked.origin) == ("Ann Gray", "https://a.test/")
    assert [link.title for link in bob.links] == ["Ann Gray"]
    assert missing.is_error
    record(cassette, visited("https://c.test/", "C is here.", "C", origin="https://c.test/"))
    assert freeze(Cassette(cassette), web) == {"pages": 3, "unread": 0}
