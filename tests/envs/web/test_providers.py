"""Readers and search engines as tools, against servers that speak as documented."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from atommem.environment import environment_config
from atommem.envs.web.sources import make_sources
from atommem.envs.web.tools import Link, ToolResult
from atommem.episode import StopReason
from tests.envs.web.browsing import ANSWER, call, play, serving, use
from tests.loopback import answering

DENIED = "https://huggingface.co/datasets/x"
HIT = Link("Ann Gray", "https://a.test/")
PAGE = ToolResult("Ann lives.", False, "Ann", (Link("Bob", "https://b.test/"),), "https://a.test/")
LINKS = [{"title": "Bob", "url": "https://b.test/"}]


def ask(tool: str, path: str, answer: Any, *texts: str, **settings: Any) -> tuple[Any, list[Any]]:
    with serving({path: answering(answer, "application/json")}, "127.0.0.1") as (host, asked):
        url = f"http://{host}"
        config = environment_config("web", tools=[tool], search_url=url, reader_url=url, **settings)
        return use(make_sources([tool], config), *texts), asked


ANN = {"title": "Ann  Gray", "link": "https://a.test/", "snippet": "Ann\nlives."}
SERPER = [{"title": "Leak", "link": DENIED, "snippet": "the answer"}, ANN]
SEARXNG = [{"title": "Ann Gray", "url": "https://a.test/", "content": "Ann lives."}]
RETRIEVED = [
    {"document": {"contents": "Leak\nthe answer", "url": DENIED}, "score": 9.0},
    {"document": {"contents": '"Ann Gray"\nAnn lives.', "url": "https://a.test/"}},
    {"contents": "no title", "title": None},
]
QUERY = "who is Ann"
FOUND = "Ann Gray: https://a.test/ Ann lives."
SEARCHES: list[tuple[str, str, Any, str, Any]] = [
    ("serper", "POST /search", {"organic": SERPER}, FOUND, {"q": QUERY, "num": 2}),
    ("searxng", "GET /search?q=who+is+Ann&format=json", {"results": SEARXNG}, FOUND, None),
    (
        "retrieve",
        "POST /retrieve",
        {"result": [RETRIEVED]},
        f"{FOUND}\n-: no title",
        {"queries": [QUERY], "topk": 2, "return_scores": True},
    ),
]


@pytest.mark.parametrize(("tool", "line", "answer", "text", "body"), SEARCHES)
def test_search_shows_allowed_results(
    tool: str, line: str, answer: Any, text: str, body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOMMEM_SERPER_API_KEY", "my-key")
    path = line.split()[1].partition("?")[0]
    (result,), asked = ask(tool, path, answer, QUERY, search_results=2)
    assert (result.text, result.links[0]) == (text, HIT)
    ((sent, headers, raw),) = asked
    assert (sent, json.loads(raw) if raw else None) == (line, body)
    assert headers.get("X-API-KEY") == ("my-key" if tool == "serper" else None)
    assert "Authorization" not in headers


def test_jina_sends_key_and_refuses_denied_pages(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_access_reads_pages_and_refuses_denied_ones() -> None:
    page = {"url": "https://a.test/", "title": "Ann", "contents": "Ann lives.", "links": LINKS}
    answer = {"result": [page]}
    (denied, result), asked = ask("access", "/access", answer, DENIED, "https://a.test/")
    assert (denied.is_error, result) == (True, PAGE)
    assert [json.loads(body) for _, _, body in asked] == [{"urls": ["https://a.test/"]}]


CASES = yaml.safe_load(Path(__file__).with_name("providers.yaml").read_text(encoding="utf-8"))
LONG = ["jina", {"data": {"content": "x" * 2000}}, "an answer of more than 0.001 MB (502)", True]


@pytest.mark.parametrize(("tool", "answer", "text", "is_error"), [*CASES["unusual"], LONG])
def test_unusual_answer_is_read(tool: str, answer: Any, text: str, is_error: bool) -> None:
    path = {"searxng": "/search", "serper": "/search", "jina": "/"}.get(tool, f"/{tool}")
    asked = "https://a.test/" if tool == "jina" else "Ann"
    (result,), _ = ask(tool, path, answer, asked, page_megabytes=0.001)
    assert (result.text, result.is_error) == (text, is_error)


@pytest.mark.slow
@pytest.mark.parametrize(("tool", "status", "answer", "shown", "requests"), CASES["faults"])
def test_provider_fault_is_an_outage_and_refused_query_an_observation(
    tool: str, status: int, answer: Any, shown: str, requests: int
) -> None:
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
