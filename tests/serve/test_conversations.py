"""Conversations in use: gateways beside each other, clients that leave, policies that fail, bounds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from atommem.errors import OutageError, PromptTooLongError
from atommem.memory.log import replay
from atommem.policy.contract import Completion, Sampling
from atommem.policy.scripted import ScriptedPolicy
from atommem.serve import logged_session
from atommem.serve.conversations import Conversations
from tests.fakes import WordTokenizer
from tests.serve.servers import Running, make_conversations, note_taker, running, scripted, until


class Gate(ScriptedPolicy):
    """Follows the script, and waits for `open` where that is closed; `fail` makes it raise."""

    def __init__(self) -> None:
        self.tokenizer = WordTokenizer()
        super().__init__(self.tokenizer, note_taker)
        self.open, self.entered, self.cancelled = (threading.Event() for _ in range(3))
        self.open.set()
        self.fail: Exception | None = None

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        self.entered.set()
        try:
            while not self.open.is_set():
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if self.fail is not None:
            raise self.fail
        return await super().complete(prompt_ids, sampling)

    def close_again(self) -> None:
        """From now on completions wait."""
        self.open.clear(), self.entered.clear(), self.cancelled.clear()


@contextmanager
def serving(db: Path, **bounds: Any) -> Iterator[tuple[Gate, Running, httpx.Client]]:
    """A server whose policy waits and fails as its gate says."""
    gate = Gate()
    policy = scripted(policy=gate, tokenizer=gate.tokenizer)
    with running(make_conversations(db, policy, **bounds)) as server, server.http() as http:
        yield gate, server, http


def items(*texts: str) -> dict[str, Any]:
    return {"items": [{"content": [{"type": "input_text", "text": text} for text in texts]}]}


def log_of(conversations: Conversations, conversation: str) -> tuple[list[str], list[int]]:
    """The kinds of its events, and the numbers of its operations; the log is checked on the way."""
    log = conversations.log
    loaded = log.load(conversation, "local", "none", True)
    assert replay(loaded.operations) == log.memory_at(conversation)
    return [event.kind for event in log.events(conversation)], [
        row["seq"] for row in log.operations(conversation, 0)
    ]


def test_a_client_that_leaves_ends_the_turn_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    with serving(tmp_path / "log.db") as (gate, server, http):
        name = http.post("/v1/conversations", json=items("Ann lives in Rome.")).json()["id"]
        body = {"conversation": name, "input": "Where does Ann live?"}
        for stream in (False, True):
            gate.close_again()
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(
                    f"{server.url}/v1/responses", json={**body, "stream": stream}, timeout=0.4
                )
            assert gate.cancelled.wait(5)
            gate.open.set()
        assert log_of(server.conversations, name)[0] == ["item", "step", "ask", "ask"]
        questions = server.conversations.log.events(name, ("ask",))
        unanswered = http.get(f"/v1/responses/{questions[0].response}").json()
        assert (unanswered["status"], unanswered["incomplete_details"]) == (
            "incomplete",
            {"reason": "interrupted"},
        )
        again = http.post("/v1/responses", json=body).json()
        assert again["output"][1]["content"][0]["text"] == "Ann lives in Rome."


def test_clients_that_leave_while_they_wait_for_a_stream_take_nobody_s_place(
    tmp_path: Path,
) -> None:
    with (
        serving(tmp_path / "log.db", waiting_each=2) as (gate, server, http),
        ThreadPoolExecutor(1) as threads,
    ):
        name = http.post("/v1/conversations", json=items("Ann lives in Rome.")).json()["id"]
        body = {"conversation": name, "input": "Where does Ann live?"}
        gate.close_again()
        asked = threads.submit(httpx.post, f"{server.url}/v1/responses", json=body, timeout=10)
        assert gate.entered.wait(5)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/responses", json={**body, "stream": True}, timeout=0.2)
        until(lambda: server.conversations.waiting(name, "local") == 1)
        gate.open.set()
        assert asked.result().status_code == 200
        assert log_of(server.conversations, name)[0].count("ask") == 1


def test_reading_that_was_interrupted_goes_on_with_the_next_call(tmp_path: Path) -> None:
    with serving(tmp_path / "log.db") as (gate, server, http), ThreadPoolExecutor(1) as threads:
        name = http.post("/v1/conversations", json=items("one 1")).json()["id"]
        gate.fail = OutageError("http://10.0.0.7 is gone")
        refused = http.post(f"/v1/conversations/{name}/items", json=items("two 2", "three 3"))
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
        assert "10.0.0.7" not in refused.text
        listed = http.get(f"/v1/conversations/{name}/items").json()["data"]
        assert [item["status"] for item in listed] == ["in_progress", "completed"]
        gate.fail = None
        gate.close_again()
        body = {"conversation": name, "input": "three"}
        asked = threads.submit(httpx.post, f"{server.url}/v1/responses", json=body, timeout=10)
        assert gate.entered.wait(5)
        (question,) = server.conversations.log.events(name, ("ask",))
        assert http.get(f"/v1/responses/{question.response}").json()["status"] == "in_progress"
        gate.open.set()
        asked.result().raise_for_status()
        held = http.get(f"/v1/conversations/{name}/memory").json()["entries"]
        assert [entry["text"] for entry in held] == ["one 1", "two 2", "three 3"]
        assert log_of(server.conversations, name)[0][:5] == ["item", "step", "item", "ask", "step"]


def test_a_text_that_does_not_fit_does_not_stand_in_the_way_for_good(tmp_path: Path) -> None:
    with serving(tmp_path / "log.db") as (gate, server, http):
        name = http.post("/v1/conversations", json={}).json()["id"]
        gate.fail = PromptTooLongError("The prompt has 9 tokens")
        assert http.post(f"/v1/conversations/{name}/items", json=items("long")).status_code == 400
        gate.fail = None
        http.post(f"/v1/conversations/{name}/items", json=items("short")).raise_for_status()
        assert log_of(server.conversations, name)[0] == ["item", "stopped", "item", "step"]


def test_what_may_wait_is_bounded(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "log.db", active=1, waiting=1, waiting_each=2) as (gate, server, http),
        ThreadPoolExecutor(4) as threads,
    ):
        names = [http.post("/v1/conversations", json={}).json()["id"] for _ in range(3)]
        gate.close_again()

        def ask(name: str) -> httpx.Response:
            with server.http() as client:
                return client.post("/v1/responses", json={"conversation": name, "input": "Who?"})

        waiting = [threads.submit(ask, name) for name in names[:2]]
        until(lambda: server.conversations.shared.turns_taken == 2)
        busy = ask(names[2])
        assert (busy.status_code, busy.headers["Retry-After"]) == (429, "1")
        waiting.append(threads.submit(ask, names[0]))
        until(lambda: server.conversations.waiting(names[0], "local") == 2)
        assert ask(names[0]).status_code == 429, "two wait for this conversation already"
        gate.open.set()
        assert [answer.result().status_code for answer in waiting] == [200, 200, 200]


def test_only_so_many_are_held_open_and_the_others_are_taken_up_again(tmp_path: Path) -> None:
    conversations = make_conversations(tmp_path / "log.db", open_count=2)
    with running(conversations) as server, server.http() as http:
        names = [
            http.post("/v1/conversations", json=items(f"secret {n}")).json()["id"] for n in range(5)
        ]
        assert conversations.open_count == 2
        for number, name in enumerate(names):
            answer = http.post(
                "/v1/responses", json={"conversation": name, "input": "secret"}
            ).json()
            assert answer["output"][1]["content"][0]["text"] == f"secret {number}"
        assert conversations.open_count == 2
        assert http.get("/v1/conversations/none").status_code == 404
    small = make_conversations(tmp_path / "log.db", open_bytes=0)
    with running(small) as server, server.http() as http:
        http.post(
            "/v1/responses", json={"conversation": names[0], "input": "secret"}
        ).raise_for_status()
        assert small.open_count == 0


def test_a_turn_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    with serving(tmp_path / "log.db", turn_seconds=0.05) as (gate, _, http):
        gate.close_again()
        assert http.post("/v1/responses", json={"input": "Who?"}).status_code == 503
        gate.open.set()


def test_what_is_asked_when_the_server_is_told_to_end_is_answered(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        with serving(tmp_path / "log.db") as (gate, server, _):
            gate.close_again()
            asked = threads.submit(
                httpx.post, f"{server.url}/v1/responses", json={"input": "Who?"}, timeout=10
            )
            assert gate.entered.wait(5)
            threading.Timer(0.3, gate.open.set).start()
        assert asked.result().status_code == 200


async def test_a_session_that_was_taken_up_is_the_one_that_was_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With snapshots in between: after every step the same memory, vectors and all."""
    monkeypatch.setattr(logged_session, "SNAPSHOT_EVERY", 32)
    one, other = (make_conversations(tmp_path / "log.db") for _ in range(2))
    name = one.log.create("local", {"goal": "case 3"}).id
    for number in range(30):
        async with one.use(name, "local") as held:
            text = f"case {number} {number % 7}"
            await held.add([{"id": f"i{number}", "role": "user", "parts": [text], "name": ""}])
            await held.read()
    async with one.use(name, "local") as held, other.use(name, "local") as twin:
        memory = held.session.memory
        assert one.log.load(name, "local", memory.start.embedder).start is not None
        assert twin.session.memory.contents == memory.contents
        assert (twin.session.memory.vectors().rows == memory.vectors().rows).all()
        assert twin.session.turns == 30
    await one.close()
    await other.close()
