"""Search engines as tools, against servers that speak as their documentation has it."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from atommem.environment import environment_config
from atommem.envs.web.net.search_tools import Retrieve, SearchSource, Searxng, Serper
from atommem.envs.web.sources import make_sources
from atommem.envs.web.tools import Link, ToolResult
from atommem.errors import ConfigError
from tests.envs.web.net.internet import answering, serving
from tests.envs.web.test_environment import use

DENIED = "https://huggingface.co/datasets/x"


def search(source: SearchSource, query: str = "who is Ann") -> ToolResult:
    return use(source, ("search", {"query": query}))[0]


def ask(
    kind: type[SearchSource], path: str, answer: Any, **settings: Any
) -> tuple[ToolResult, list[Any]]:
    with serving({path: answering(answer, "application/json")}, "127.0.0.1") as (host, asked):
        return search(
            kind(environment_config("web", search_url=f"http://{host}", **settings))
        ), asked


def test_serper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOMMEM_SERPER_API_KEY", "my-key")
    organic = [
        {"title": "Leak", "link": DENIED, "snippet": "the answer"},
        {"title": "No address", "link": "http://[a", "snippet": "x"},
        {
            "title": "Ann  Gray",
            "link": "https://a.test/",
            "snippet": "Ann lives\nin Oakrest.",
            "position": 2,
        },
        {"title": "Bob", "link": "https://b.test/"},
        {"title": "Third", "link": "https://c.test/", "snippet": "x"},
    ]
    result, asked = ask(Serper, "/search", {"organic": organic}, search_results=2)
    assert result.text == "Ann Gray: https://a.test/ Ann lives in Oakrest.\nBob: https://b.test/"
    assert result.links == (Link("Ann Gray", "https://a.test/"), Link("Bob", "https://b.test/"))
    ((line, headers, body),) = asked
    assert line == "POST /search"
    assert json.loads(body) == {"q": "who is Ann", "num": 2}
    assert headers["X-API-KEY"] == "my-key"
    assert "Authorization" not in headers


def test_serpers_own_answer_and_searxngs_are_results() -> None:
    box = {"title": "Ann", "answer": "Oakrest", "link": "https://a.test/"}
    result, _ = ask(Serper, "/search", {"organic": [], "answerBox": box})
    assert result.text == "Ann: https://a.test/ Oakrest"
    found = [{"title": "Ann", "url": "https://a.test/", "content": "Ann lives."}]
    result, asked = ask(
        Searxng, "/search", {"results": found, "unresponsive_engines": [["x", "timeout"]]}
    )
    assert result.text == "Ann: https://a.test/ Ann lives."
    assert asked[0][0] == "GET /search?q=who+is+Ann&format=json"
    result, asked = ask(Searxng, "/search", {"results": []})
    assert (result.text, result.is_error) == ("No page was found for: who is Ann", True)
    empty = search(Searxng(environment_config("web", search_url="http://127.0.0.1:9")), "  ")
    assert empty.text == "The query is empty."


def test_retrieve_servers_with_and_without_scores_titles_and_addresses() -> None:
    documents = [
        {"document": {"id": "1", "contents": '"Ann Gray"\nAnn lives.'}, "score": 3.0},
        {"title": "Bob", "text": "Bob too.", "contents": "unused"},
        {"document": {"contents": "no title", "url": "https://c.test/"}},
        {"document": {"title": "Leak", "text": "the answer", "url": DENIED}},
    ]
    result, asked = ask(Retrieve, "/retrieve", {"result": [documents]})
    assert (
        result.text
        == "Ann Gray: Ann Gray Ann lives.\nBob: Bob Bob too.\n-: https://c.test/ no title"
    )
    assert [link.target for link in result.links] == ["Ann Gray", "Bob", "https://c.test/"]
    assert json.loads(asked[0][2]) == {"queries": ["who is Ann"], "topk": 5, "return_scores": True}


def test_what_is_recorded_is_held_to_the_lists_of_today(tmp_path: Path) -> None:
    found = [{"title": f"{name}\n", "text": "x", "url": f"https://{name}.test/"} for name in "ab"]

    def use_both(url: str, **lists: Any) -> list[str]:
        config = {
            "tools": ["retrieve", "access"],
            "search_url": url,
            "cassette": str(tmp_path / "c"),
            **lists,
        }
        search, visit = make_sources(["retrieve", "access"], environment_config("web", **config))
        (read,) = use(visit, ("visit", {"page": "https://a.test/"}))
        search, _ = make_sources(["retrieve", "access"], environment_config("web", **config))
        return [read.text, use(search, ("search", {"query": "x"}))[0].text]

    pages = {
        "/retrieve": {"result": [found]},
        "/access": {"result": [{"contents": "of a", "url": "https://a.test/"}]},
    }
    routes = {path: answering(answer, "application/json") for path, answer in pages.items()}
    with serving(routes, "127.0.0.1") as (host, asked):
        denied = "https://a.test/ may not be visited."
        assert use_both(f"http://{host}", allow_hosts=["b.test"]) == [
            denied,
            "b: https://b.test/ x",
        ]
        assert use_both(f"http://{host}")[0] == "of a", (
            "what is not allowed is not recorded as missing"
        )
        (tmp_path / "c").unlink()
        assert use_both(f"http://{host}")[1] == "a: https://a.test/ x\nb: https://b.test/ x"
        assert use_both(f"http://{host}", deny_hosts=["a.test"]) == [denied, "b: https://b.test/ x"]
        both = use_both(f"http://{host}", deny_hosts=["a.test", "b.test"])
        assert both == [denied, "All that was found may not be visited."]
    assert [line for line, *_ in asked if "health" not in line].count("POST /retrieve") == 2


def test_what_a_server_serves_in_another_version_is_recorded_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = ["1"]
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # of a cluster's nodes, say

    def health(handler: BaseHTTPRequestHandler, sent: bytes) -> None:
        answering({"version": version[0]}, "application/json")(handler, sent)

    def retrieve(handler: BaseHTTPRequestHandler, sent: bytes) -> None:
        document = {"title": "Ann", "text": f"of version {version[0]}"}
        answering({"result": [[{"document": document}]]}, "application/json")(handler, sent)

    def found(mode: str = "live") -> str:
        settings = {
            "search_url": f"http://{host}",
            "cassette": str(tmp_path / "c.db"),
            "cassette_mode": mode,
        }
        (source,) = make_sources(
            ["retrieve"], environment_config("web", tools=["retrieve"], **settings)
        )
        return search(source).text

    with serving({"/health": health, "/retrieve": retrieve}, "127.0.0.1") as (host, asked):
        assert found() == found() == "Ann: Ann of version 1"
        assert [line for line, *_ in asked] == ["GET /health", "POST /retrieve", "GET /health"]
        version[0] = "2"
        assert found().endswith("of version 2")
    assert found("replay").endswith("of version 2"), "as the server was when it was asked last"
    with pytest.raises(ConfigError, match="is out of reach"):
        found()
