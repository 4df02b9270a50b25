"""Whose fault it is: a case for each line of the table in docs/web.md, through whole episodes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from atommem.envs.web.net.reader_tools import Direct
from atommem.episode import Episode
from atommem.observation import StopReason
from tests.envs.web.net.internet import answering, on_loopback, resolver, serving
from tests.envs.web.test_environment import ANSWER, call, play


class LoopbackDirect(Direct):
    """The reader with 127.0.0.2 as its internet."""

    def __init__(self, config: Any) -> None:
        async def resolve(host: str, port: int) -> list[str]:
            if host in ("unresolved.test", "a.root-servers.net"):
                raise socket.gaierror(socket.EAI_AGAIN, "try again")
            return await resolver({})(host, port)

        super().__init__(config, rule=on_loopback, resolve=resolve)


def slow(handler: BaseHTTPRequestHandler, sent: bytes) -> None:
    handler.connection.recv(1)


def breaking(handler: BaseHTTPRequestHandler, sent: bytes) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)


def interim(handler: BaseHTTPRequestHandler, sent: bytes) -> None:
    with suppress(OSError):  # nobody reads it to its end
        handler.connection.sendall(b"HTTP/1.1 102 Processing\r\n\r\n" * 100_000)


PAGES = {
    "/robots.txt": answering("User-agent: *\nDisallow: /robots", "text/plain"),
    "/fine": answering("<p>Ann lives in Oakrest.</p>"),
    "/forbidden": answering("no", status=403),
    "/trouble": answering("no", status=500),
    "/image": answering(b"\x89PNG", "image/png"),
    "/binary": answering(bytes(range(32)) * 100, "text/plain"),
    "/deep": answering("<div>" * 100_000),
    "/empty": answering("<script>x</script>"),
    "/damaged": answering(b"%PDF-1.7", "application/pdf"),
    "/large": answering("x" * 2_000_000),
    "/slow": slow,
    "/breaking": breaking,
    "/interim": interim,
    "/robots": answering("<p>x</p>"),
}


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    pytest.importorskip("lxml_html_clean")
    with serving(PAGES) as (host, _):
        yield f"http://{host}"


def browse(completions: list[str], **settings: Any) -> Episode:
    limits = {"tool_retries": 1, "page_seconds": 2.0, "page_megabytes": 1.0, "parse_workers": 1}
    return play(completions, **limits, **settings)


def ask(tool: str, url: str, page: str = "https://a.test/") -> Episode:
    """An episode that asks a provider once."""
    written = (
        call("visit", page=page) if tool in ("jina", "access") else call("search", query="Ann")
    )
    return browse([written, ANSWER], tools=[tool], search_url=url, reader_url=url)


DIRECT = "tests.envs.web.net.test_faults:LoopbackDirect"
PAGE_FAULTS = {
    "/missing": "404",
    "/forbidden": "403",
    "/trouble": "500",
    "http://nowhere.test/": "no host",
    "http://127.0.0.2:9/": "cannot be had",
    "/breaking": "cannot be had",
    "/slow": "longer than 2 seconds",
    "/interim": "300,000 bytes came before an answer",
    "/large": "larger than 1 MB",
    "/image": "not a text",
    "/binary": "not a text",
    "/deep": "no text",
    "/empty": "no text",
    "/damaged": "cannot be read",
    "/robots": "does not let robots",
    "https://huggingface.co/datasets/x": "may not be visited",
    "http://127.0.0.1/": "not on the public web",
    "Ann": "no address",
}


def test_a_pages_fault_is_an_observation_and_the_episode_goes_on(site: str) -> None:
    """An episode that visits them all, and before and after them a page that is there (the first starts a reader)."""
    pages = [
        site + page if page.startswith("/") else page for page in ["/fine", *PAGE_FAULTS, "/fine"]
    ]
    visits = browse([*(call("visit", page=page) for page in pages), ANSWER], tools=[DIRECT])
    _, _, *faults, last = [step.observation for step in visits.steps]
    for (page, said), observation in zip(PAGE_FAULTS.items(), faults, strict=True):
        assert said in observation.values("text")[0], page
        assert observation.stream[0].name == "failure", page
    assert (visits.stop_reason, visits.reward) == (StopReason.ANSWERED, 1.0)
    assert "Oakrest" in last.values("text")[0]


@pytest.mark.parametrize(
    "written",
    [
        call("look", query="Ann"),
        call("visit", url="Ann"),
        '<tool_call>{"name": "visit", "arguments": {"page": 3}}</tool_call>',
        "<tool_call>visit Ann</tool_call>",
    ],
)
def test_the_policys_fault_is_a_problem_and_an_observation_and_costs_a_call(
    site: str, written: str
) -> None:
    episode = browse([written, ANSWER], tools=[DIRECT])
    assert (episode.stop_reason, episode.reward) == (StopReason.ANSWERED, 1.0)
    assert len(episode.steps[0].problems) == 1
    assert episode.steps[1].observation.stream[0].name == "failure"
    assert episode.steps[1].observation.values("left") == [39]


@pytest.mark.parametrize(
    ("tool", "status", "answer"),
    [
        ("serper", 401, {"message": "Unauthorized."}),
        ("serper", 403, {"message": "Unauthorized."}),
        ("serper", 400, {"message": "Not enough credits", "statusCode": 400}),
        ("jina", 400, {"message": "Not enough credits"}),
        ("jina", 402, {"message": "balance"}),
        ("searxng", 403, "Forbidden"),
        ("serper", 429, "slow down"),
        ("retrieve", 500, "broken"),
        ("access", 503, "broken"),
        ("jina", 429, "slow down"),
        ("jina", 503, "broken"),
        ("retrieve", 404, {"detail": "Not Found"}),
        ("serper", 200, ["no dict"]),
        ("serper", 200, {"organic": ["no result"]}),
        ("searxng", 200, {"error": "what"}),
        ("retrieve", 200, {"error": "no index"}),
        ("retrieve", 200, {"result": []}),
        ("retrieve", 200, {"result": [[{"document": {"id": 1}}]]}),
        ("access", 200, "no JSON"),
        ("jina", 200, {"data": None}),
        ("searxng", 200, {"results": [], "unresponsive_engines": [["google", "CAPTCHA"]]}),
    ],
)
def test_a_providers_fault_is_an_outage(tool: str, status: int, answer: Any) -> None:
    route = answering(answer, "application/json", status)
    paths = {"/search": route, "/retrieve": route, "/access": route, "/": route}
    with serving(paths, "127.0.0.1") as (host, asked):
        episode = ask(tool, f"http://{host}")
    assert (episode.stop_reason, episode.reward) == (StopReason.FAILED, None)
    assert f"http://{host}" in str(episode.error)
    retried = 2 if status in (429, 500, 503) or answer == "no JSON" else 1
    assert len(asked) == retried * (2 if status >= 500 else 1), "it may have been the query or page"


@pytest.mark.parametrize("tool", [DIRECT, "serper", "searxng", "retrieve", "access", "jina"])
def test_a_provider_that_is_gone_and_a_machine_without_resolver_are_outages(tool: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    visit = [call("visit", page="http://unresolved.test/"), ANSWER]
    episode = (
        browse(visit, tools=[DIRECT]) if tool == DIRECT else ask(tool, f"http://127.0.0.1:{port}")
    )
    assert (episode.stop_reason, episode.reward) == (StopReason.FAILED, None)


LEAK = {
    "url": "https://huggingface.co/datasets/x",
    "contents": "the answer",
    "content": "the answer",
}


@pytest.mark.parametrize(
    ("tool", "status", "answer", "said"),
    [
        *(
            (tool, 422, {"message": "cannot do this"}, "cannot do this (422)")
            for tool in ("serper", "jina")
        ),
        ("searxng", 414, {"message": "cannot do this"}, "cannot do this (414)"),
        (
            "jina",
            400,
            {"message": "Domain 'credit.test' could not be resolved"},
            "'credit.test' could not be resolved",
        ),
        (
            "jina",
            200,
            {"data": {"warning": "Target URL returned error 404: Not Found", "content": "x"}},
            "error 404",
        ),
        ("jina", 200, {"data": {"content": ""}}, "has no text"),
        ("jina", 200, {"data": LEAK}, "may not be visited"),
        ("access", 200, {"result": [LEAK]}, "may not be visited"),
        ("access", 200, {"result": [None]}, "there is no page https://a.test/."),
        ("searxng", 200, {"results": ["x" * 1_000_000]}, "gives an answer of more than 1 MB"),
    ],
)
def test_a_query_or_page_that_a_provider_does_not_take_is_an_observation(
    tool: str, status: int, answer: Any, said: str
) -> None:
    route = answering(answer, "application/json", status)
    with serving({"/search": route, "/access": route, "/": route}, "127.0.0.1") as (host, _):
        episode = ask(
            tool,
            f"http://{host}",
            "https://credit.test/" if "credit" in said else "https://a.test/",
        )
    assert episode.stop_reason is StopReason.ANSWERED
    (told,) = episode.steps[1].observation.values("text")
    assert said in told
    assert "the answer" not in told
    assert episode.steps[1].observation.stream[0].name == "failure"


@pytest.mark.parametrize(
    ("tool", "answer", "said"),
    [
        (
            "jina",
            {"data": {"content": "Example"}},
            "https://a.test/ is too much for the reader (524).",
        ),
        (
            "access",
            {"result": [None]},
            "https://a.test/ is too much for the server of pages (524).",
        ),
        ("searxng", {"results": []}, "this query is too much for searxng (524): write another."),
    ],
)
def test_what_a_provider_stumbles_over_while_it_answers_others_is_an_observation(
    tool: str, answer: Any, said: str
) -> None:
    def route(handler: BaseHTTPRequestHandler, sent: bytes) -> None:
        easy = b"example.com" in sent or "weather" in handler.path
        answering(answer, "application/json", 200 if easy else 524)(handler, sent)

    with serving({"/": route, "/access": route, "/search": route}, "127.0.0.1") as (host, _):
        episode = ask(tool, f"http://{host}")
    assert episode.stop_reason is StopReason.ANSWERED
    assert episode.steps[1].observation.values("text") == [said]
