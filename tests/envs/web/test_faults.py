"""Effects of faults on episodes, as the table in docs/web.md lists them."""

from __future__ import annotations

import socket
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from atommem.episode import Episode, StopReason
from tests.envs.web.browsing import ANSWER, DIRECT, answering, call, play, serving


def slow(handler: BaseHTTPRequestHandler, sent: bytes) -> None:
    handler.connection.recv(1)


def breaking(handler: BaseHTTPRequestHandler, sent: bytes) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)


PAGES = {
    "/robots.txt": answering("User-agent: *\nDisallow: /robots", "text/plain"),
    "/fine": answering("<p>Ann lives in Oakrest.</p>"),
    "/image": answering(b"\x89PNG", "image/png"),
    "/empty": answering("<script>x</script>"),
    "/large": answering("x" * 2_000_000),
    "/slow": slow,
    "/breaking": breaking,
    "/robots": answering("<p>x</p>"),
}
PAGE_FAULTS = {
    "/missing": "404",
    "http://nowhere.test/": "no host",
    "http://127.0.0.2:9/": "cannot be fetched",
    "/breaking": "cannot be fetched",
    "/slow": "longer than 2 seconds",
    "/large": "larger than 1 MB",
    "/image": "not a text",
    "/empty": "no text",
    "/robots": "does not allow robots",
    "https://huggingface.co/datasets/x": "may not be visited",
    "http://127.0.0.1/": "not on the public web",
    "Ann": "not a valid address",
}


def browse(completions: list[str], **settings: Any) -> Episode:
    limits = {"tool_retries": 1, "page_seconds": 2.0, "page_megabytes": 1.0, "parse_workers": 1}
    return play(completions, **limits, **settings)


def ask(tool: str, url: str) -> Episode:
    """Return an episode that asks a provider once."""
    visit, search = call("visit", page="https://a.test/"), call("search", query="Ann")
    written = visit if tool in ("jina", "access") else search
    return browse([written, ANSWER], tools=[tool], search_url=url, reader_url=url)


@pytest.mark.slow
def test_page_fault_is_an_observation_and_the_episode_goes_on() -> None:
    pytest.importorskip("lxml_html_clean")
    with serving(PAGES) as (host, _):
        pages = ["/fine", *PAGE_FAULTS, "/fine"]
        pages = [f"http://{host}{page}" if page[0] == "/" else page for page in pages]
        visits = browse([*(call("visit", page=page) for page in pages), ANSWER], tools=[DIRECT])
    _, _, *faults, last = [step.observation for step in visits.steps]
    for (page, message), observation in zip(PAGE_FAULTS.items(), faults, strict=True):
        assert message in observation.values("text")[0], page
        assert observation.stream[0].name == "failure", page
    assert (visits.stop_reason, visits.reward) == (StopReason.ANSWERED, 1.0)
    assert "Oakrest" in last.values("text")[0]


@pytest.mark.parametrize("written", [call("look", query="Ann"), "<tool_call>visit</tool_call>"])
def test_malformed_call_is_a_problem_and_an_observation_and_costs_a_call(written: str) -> None:
    episode = browse([written, ANSWER], tools=["task"])
    assert (episode.stop_reason, episode.reward) == (StopReason.ANSWERED, 1.0)
    assert len(episode.steps[0].problems) == 1
    assert episode.steps[1].observation.stream[0].name == "failure"
    assert episode.steps[1].observation.values("left") == [39]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "status", "answer"),
    [
        ("serper", 401, {"message": "Unauthorized."}),
        ("serper", 400, {"message": "Not enough credits", "statusCode": 400}),
        ("access", 503, "broken"),
        ("access", 200, "no JSON"),
        ("searxng", 200, {"results": [], "unresponsive_engines": [["google", "CAPTCHA"]]}),
    ],
)
def test_provider_fault_is_an_outage(tool: str, status: int, answer: Any) -> None:
    route = answering(answer, "application/json", status)
    paths = {"/search": route, "/retrieve": route, "/access": route, "/": route}
    with serving(paths, "127.0.0.1") as (host, asked):
        episode = ask(tool, f"http://{host}")
    assert (episode.stop_reason, episode.reward) == (StopReason.FAILED, None)
    assert f"http://{host}" in str(episode.error)
    assert len(asked) == (2 if status == 503 or answer == "no JSON" else 1)


LEAK = {"url": "https://huggingface.co/datasets/x", "contents": "secret", "content": "secret"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "status", "answer", "message"),
    [
        ("serper", 422, {"message": "cannot do this"}, "cannot do this (422)"),
        ("jina", 200, {"data": LEAK}, "may not be visited"),
        ("access", 200, {"result": [None]}, "there is no page https://a.test/."),
        ("searxng", 200, {"results": ["x" * 1_000_000]}, "more than 1 MB"),
    ],
)
def test_refused_query_or_page_is_an_observation(
    tool: str, status: int, answer: Any, message: str
) -> None:
    route = answering(answer, "application/json", status)
    with serving({"/search": route, "/access": route, "/": route}, "127.0.0.1") as (host, _):
        episode = ask(tool, f"http://{host}")
    assert episode.stop_reason is StopReason.ANSWERED
    (text,) = episode.steps[1].observation.values("text")
    assert message in text
    assert "secret" not in text
