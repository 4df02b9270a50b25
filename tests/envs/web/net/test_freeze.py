"""A cassette becomes a corpus: the recorded web, with a search of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from atommem.environment import environment_config
from atommem.envs.web.net.cassette import Cassette, RecordedCall
from atommem.envs.web.net.freeze import freeze
from atommem.envs.web.sources import make_sources
from atommem.envs.web.tools import Link, ToolResult
from atommem.errors import ConfigError
from tests.envs.web.test_environment import use
from tests.fakes import command

main = command("web")

pytest.importorskip("tantivy")
RECORDED = {
    ("search", "query", "Ann"): ToolResult(
        "Ann: a", links=(Link("Ann", "https://a.test/"), Link("C", "https://c.test/"))
    ),
    ("visit", "page", "http://a.test"): ToolResult("Ann Gray lives here.", title="Ann Gray", origin="https://a.test/"),
    ("visit", "page", "https://b.test/"): ToolResult("Bob wrote to Ann Gray.", title="Bob", origin="https://b.test/"),
    ("visit", "page", "https://gone.test/"): ToolResult("https://gone.test/ answers 404.", is_error=True),
}


def record(path: Path, recorded: dict[tuple[str, str, str], ToolResult]) -> None:
    cassette = Cassette(path)
    for (tool, name, value), result in recorded.items():
        call = RecordedCall.of(tool, "engine", {name: value})
        cassette.begin(call, 0)
        cassette.end(call, result)
    cassette.close()


def test_what_was_read_can_be_searched_and_visited_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "c.db", RECORDED)
    assert main(["freeze", str(tmp_path / "c.db"), "--out", str(tmp_path / "web")]) == 0
    assert "2 pages. 1 that were found were not read" in capsys.readouterr().out
    (source,) = make_sources(["corpus"], environment_config("web", tools=["corpus"], corpus=str(tmp_path / "web")))
    visits = [("visit", {"page": page}) for page in ("http://a.test", "https://a.test/", "Bob", "x")]
    found, asked, origin, bob, missing = use(source, ("search", {"query": "who lives here"}), *visits)
    assert found.links[0].title == "Ann Gray"
    assert asked.text == origin.text == "Ann Gray lives here."
    assert (asked.title, asked.origin) == ("Ann Gray", "https://a.test/")
    assert [link.title for link in bob.links] == ["Ann Gray"]
    assert missing.is_error
    # It grows with its cassette.
    more = {("visit", "page", "https://c.test/"): ToolResult("C is here.", title="C", origin="https://c.test/")}
    record(tmp_path / "c.db", more)
    assert freeze(Cassette(tmp_path / "c.db"), tmp_path / "web") == {"pages": 3, "unread": 0}


def test_a_cassette_without_pages_cannot_be_frozen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "c.db", {})
    with pytest.raises(ConfigError, match="nothing to freeze"):
        freeze(Cassette(tmp_path / "c.db"), tmp_path / "web")
    assert main(["show", str(tmp_path / "none.db")]) == 2
    assert "there is no cassette" in capsys.readouterr().err
