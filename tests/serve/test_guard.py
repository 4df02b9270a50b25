"""What stands before every request: host, origin, key, rate, size; and a log without what users say."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from functools import partial

import pytest

from atommem.errors import ConfigError
from atommem.serve import guard
from atommem.serve.api_keys import LOCAL, Key, Keys
from atommem.serve.conversations import Conversations
from atommem.serve.guard import LOGGER, JsonLines, Limits, Rates
from tests.serve.servers import Running, make_conversations, running, until

LIMITS = Limits(hosts=("memory.test",), requests_per_minute=1000, max_body_bytes=2_000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(make_conversations(tmp_path_factory.mktemp("serve") / "log.db"), LIMITS) as found:
        yield found


@pytest.fixture(scope="module")
def keys(server: Running) -> dict[str, str]:
    """The token of each owner."""
    store = Keys(server.conversations.log)
    return {owner: store.add(owner)[1] for owner in ("ann", "bob")}


def test_without_keys_all_is_this_machine_s(conversations: Conversations) -> None:
    keys = Keys(conversations.log)
    assert keys.find("anything") == Key(LOCAL, LOCAL)
    number, token = keys.add("ann", 5, 100)
    assert keys.find(token) == Key(number, "ann", 5, 100)
    assert keys.find("anything") is keys.find("") is None
    keys.revoke(number)
    assert keys.find(token) is keys.find("") is None, (
        "at once, and nobody gets in without one again"
    )
    assert token not in str(keys.listed())
    assert len(token) > 43
    for wrong in (
        lambda: keys.revoke("none"),
        *(partial(keys.add, owner) for owner in ("", "a" * 65, "a\nb")),
    ):
        with pytest.raises(ConfigError):
            wrong()


def test_an_owner_s_conversations_are_for_nobody_else_there(
    server: Running, keys: dict[str, str]
) -> None:
    with server.http(keys["ann"]) as ann, server.http(keys["bob"]) as bob, server.http() as nobody:
        mine = [
            ann.post("/v1/conversations", json={"metadata": {"title": str(n)}}).json()["id"]
            for n in range(5)
        ]
        first = ann.get("/v1/conversations", params={"limit": 3}).json()
        rest = ann.get("/v1/conversations", params={"limit": 3, "after": first["last_id"]}).json()
        assert (first["has_more"], rest["has_more"]) == (True, False)
        assert sorted(item["id"] for item in first["data"] + rest["data"]) == sorted(mine)
        assert bob.get("/v1/conversations").json()["data"] == []
        path = f"/v1/conversations/{mine[0]}"
        assert ann.get(path).status_code == 200
        for other in (path, f"/v1/conversations?after={mine[0]}"):
            assert bob.get(other).status_code == 404
        for closed in (path, "/v1/conversations", "/metrics"):
            assert nobody.get(closed).status_code == 401
        assert (
            nobody.get(path, headers={"Authorization": "Basic " + keys["ann"]}).status_code == 401
        )
        for open_ in ("/health", "/ui", "/ui/front.js"):
            assert nobody.get(open_).status_code == 200
        assert nobody.get("/ready").json() == {"ready": True}
        assert "atommem_requests_total" in ann.get("/metrics").text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "memory.test"}, 200),
        ({"Host": "memory.test:8000"}, 200),
        ({"Host": "LOCALHOST:1"}, 200),
        ({"Host": "evil.test"}, 421),
        ({"Host": "127.0.0.1.evil.test"}, 421),
        ({"Host": ""}, 421),
        ({"Origin": "http://evil.test"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "memory.test", "Origin": "https://memory.test"}, 200),
        ({"Origin": "http://["}, 403),
        ({"Origin": "\xff://\xff"}, 403),
        ({"Host": "[::1"}, 421),
        ({"Host": "["}, 421),
        ({"Authorization": "Bearer \xff\xfe"}, 401),
        ({"Content-Type": "\xff/\xff; charset=\xff"}, 200),
    ],
)
def test_other_hosts_and_other_sites_are_refused(
    server: Running, keys: dict[str, str], headers: dict[str, str], status: int
) -> None:
    with server.http(keys["ann"]) as http:
        sent = {name: value.encode("latin-1") for name, value in headers.items()}
        assert http.get("/v1/models", headers=sent).status_code == status


def test_a_body_that_is_too_large_is_refused_however_it_is_sent(
    server: Running, keys: dict[str, str]
) -> None:
    large = json.dumps({"items": [{"content": "x" * 3_000}]}).encode()
    with server.http(keys["ann"]) as http:
        for body in (large, iter([large[:1000], large[1000:]])):
            refused = http.post(
                "/v1/conversations", content=body, headers={"Content-Type": "application/json"}
            )
            assert refused.status_code == 413
        for path in ("/mcp", "/v1/imports", "/v1/chat/completions"):
            assert (
                http.post(
                    path, content=large, headers={"Content-Type": "application/json"}
                ).status_code
                == 413
            ), path
    _, token = Keys(server.conversations.log).add("cid", max_body_bytes=10_000)
    with server.http(token) as http:
        assert http.post("/v1/conversations", content=large).status_code in (200, 400)


def test_a_revoked_key_opens_nothing_within_a_second(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "KEY_SECONDS", 0.05)
    keys = Keys(server.conversations.log)
    number, token = keys.add("dan")
    with server.http(token) as http:
        assert http.get("/v1/models").status_code == 200
        keys.revoke(number)
        until(lambda: http.get("/v1/models").status_code == 401, 1)


def test_a_key_s_rate_fills_evenly_and_who_asks_too_often_is_told_when_to_come_back(
    server: Running,
) -> None:
    now = 0.0
    rates = Rates(lambda: now)
    assert [rates.wait("a", 2) for _ in range(3)] == [0, 0, 30]
    assert rates.wait("b", 2) == 0
    now = 30.0
    assert [rates.wait("a", 2) for _ in range(2)] == [0, 30]
    _, token = Keys(server.conversations.log).add("often", requests_per_minute=2)
    with server.http(token) as http:
        answers = [http.get("/v1/models") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert 1 <= int(answers[2].headers["Retry-After"]) <= 31


def test_the_log_is_json_and_has_nothing_that_a_user_said_or_a_bug_did(
    server: Running,
    keys: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("sesame")

    with caplog.at_level(logging.INFO, LOGGER.name), server.http(keys["ann"]) as http:
        answers = [
            http.post("/v1/conversations", json={"items": [{"content": "the secret is sesame"}]}),
            http.get("/v1/conversations/sesame?secret=sesame"),
            http.get("/sesame"),
        ]
        monkeypatch.setattr(server.conversations.log, "about", broken)
        answers.append(http.get("/v1/conversations/x"))
        ids = [answer.headers["x-request-id"] for answer in answers]

        def lines() -> dict[str, str]:
            """Of these requests: a request is logged after it was answered, so that others' may come in between."""
            told = [
                JsonLines().format(record)
                for record in caplog.records
                if record.name == LOGGER.name
            ]
            return {found["id"]: line for line in told if (found := json.loads(line))["id"] in ids}

        until(lambda: len(lines()) == 4)
    told = [lines()[number] for number in ids]
    assert not any("sesame" in line or keys["ann"] in line for line in told)
    one = "/v1/conversations/{conversation}"
    assert [json.loads(line)["route"] for line in told] == ["/v1/conversations", one, "none", one]
    # A bug is told by its place, not by its words.
    assert (answers[-1].status_code, answers[-1].json()["error"]["message"]) == (
        500,
        "the server failed.",
    )
    found = json.loads(told[-1])
    assert (found["level"], found["error"]) == ("error", "RuntimeError")
