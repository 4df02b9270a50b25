"""Keys, hosts, origins, a log without text of clients, and the page."""

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from atommem.errors import ConfigError
from atommem.serve import middleware
from tests.serve.servers import KEYS, Running, make_conversations, new_conversation, running, until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    conversations = make_conversations(tmp_path_factory.mktemp("serve") / "log.db")
    with running(conversations, KEYS, ["memory.test"]) as found:
        yield found


def test_load_keys_reads_a_file_or_else_the_variable(tmp_path, monkeypatch):
    assert middleware.load_keys() == {}
    first, second = "0123456789abcdef", "fedcba9876543210"
    monkeypatch.setenv(middleware.KEYS_VARIABLE, f"ann={first},bob={second}")
    assert middleware.load_keys() == {first: "ann", second: "bob"}
    file = tmp_path / "keys"
    file.write_text(f"# of two people\nann = {first}\n\nann={second}=\n")
    assert middleware.load_keys(str(file)) == {first: "ann", f"{second}=": "ann"}
    file.write_text(f"ann={first}\nbob={first}")
    with pytest.raises(ConfigError, match="line 2: not OWNER=KEY with a key of its own"):
        middleware.load_keys(str(file))


def test_owners_do_not_see_each_other_and_only_the_page_needs_no_key(server):
    with server.http(KEYS["ann"]) as ann, server.http(KEYS["bob"]) as bob, server.http() as nobody:
        paths = [new_conversation(ann, title=str(number)) for number in range(3)]
        first = ann.get("/v1/conversations", params={"limit": 2}).json()
        rest = ann.get("/v1/conversations", params={"limit": 2, "after": first["last_id"]}).json()
        found = [f"/v1/conversations/{item['id']}" for item in first["data"] + rest["data"]]
        assert sorted(found) == sorted(paths)
        assert bob.get("/v1/conversations").json()["data"] == []
        assert [bool(who.get("/v1/export").text) for who in (ann, bob)] == [True, False]
        assert ann.get(paths[0]).status_code == 200
        name = paths[0].rpartition("/")[2]
        assert bob.get(paths[0]).status_code == 404
        assert bob.get("/v1/conversations", params={"after": name}).json()["data"] == []
        for path in (paths[0], "/v1/conversations", "/metrics", "/mcp"):
            assert nobody.get(path).status_code == 401
        for path in ("/", "/health", "/ui", "/ui/page.js"):
            assert nobody.get(path).status_code == 200
        assert "atommem_requests_total" in ann.get("/metrics").text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "127.0.0.1.evil.test"}, 421),
        ({"Origin": "null"}, 403),
        ({"Host": "memory.test", "Origin": "https://memory.test"}, 200),
        ({"Authorization": "Bearer \xff\xfe"}, 401),
    ],
)
def test_other_hosts_and_origins_are_refused(server, headers, status):
    sent = {name: value.encode("latin-1") for name, value in headers.items()}
    with server.http(KEYS["ann"]) as http:
        assert http.get("/v1/models", headers=sent).status_code == status


def test_body_that_is_not_json_and_get_of_mcp_are_refused(server):
    with server.http(KEYS["ann"]) as http:
        body = b'{"items": [{"content": "Ann lives in Rome."}]}'
        assert http.post("/v1/conversations", content=body).status_code == 415
        assert http.post("/v1/conversations").status_code == 200
        assert http.get("/mcp").status_code == 405


def test_log_is_json_without_text_of_clients_or_exceptions(server, caplog, monkeypatch):
    def broken(*_: object) -> None:
        raise RuntimeError("sesame")

    with caplog.at_level(logging.INFO, middleware.LOGGER.name), server.http(KEYS["ann"]) as http:
        answers = [
            http.post("/v1/conversations", json={"items": [{"content": "sesame"}]}),
            http.get("/v1/conversations/sesame?secret=sesame"),
        ]
        monkeypatch.setattr(server.conversations.log, "info", broken)
        answers.append(http.get("/v1/conversations/x"))
        ids = [answer.headers["x-request-id"] for answer in answers]

        def lines() -> dict[str, str]:
            records = [record for record in caplog.records if record.name == middleware.LOGGER.name]
            found = [middleware.JsonFormatter().format(record) for record in records]
            return {json.loads(line)["id"]: line for line in found}

        until(lambda: {*ids} <= {*lines()})  # requests are logged after they are answered
    found = [lines()[request] for request in ids]
    assert not any("sesame" in line or KEYS["ann"] in line for line in found)
    one = "/v1/conversations/{conversation}"
    assert [json.loads(line)["route"] for line in found] == ["/v1/conversations", one, one]
    assert answers[-1].json()["error"]["message"] == "the server failed."
    last = json.loads(found[-1])
    assert (last["level"], last["error"], last["owner"]) == ("error", "RuntimeError", "ann")


def test_database_that_is_out_is_503_without_its_words(server, monkeypatch):
    def out(*_: object) -> None:
        raise OperationalError("select sesame", {}, Exception("sesame"))

    monkeypatch.setattr(server.conversations.log, "info", out)
    with server.http(KEYS["ann"]) as http:
        answer = http.get("/v1/conversations/x")
        assert http.get("/ready").status_code == 200
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "sesame" not in answer.text


async def test_request_cut_at_the_end_of_the_drain_is_503():
    sent: list[Any] = []

    async def cut(*_: Any) -> None:
        raise asyncio.CancelledError

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"localhost")]}
    with pytest.raises(asyncio.CancelledError):
        await middleware.RequestMiddleware(cut, {}, ())(scope, cut, send)
    assert sent[0]["status"] == 503
    assert (b"retry-after", b"5") in sent[0]["headers"]
    assert json.loads(sent[1]["body"])["error"]["type"] == "server_error"


def test_page_has_no_inline_code_and_no_other_origins(server):
    http = server.http()
    pages = {name: http.get(f"/ui{name}") for name in ("", "/page.css", "/page.js")}
    assert set(re.findall(r'(?:src|href)="ui/([^"]+)"', pages[""].text)) == {"page.css", "page.js"}
    (policy,) = {page.headers["content-security-policy"] for page in pages.values()}
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*\ssrc=)", pages[""].text)
    unsafe = r"https?://|innerHTML|outerHTML|insertAdjacent|document\.write|\beval\("
    assert not any(re.search(unsafe, page.text) for page in pages.values())
    assert http.get("/ui/..%2fapp.py").status_code == 404
