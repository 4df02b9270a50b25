"""Conversations in use: disconnects, outages, bounds, and other gateways."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from atommem.errors import OutageError, PromptTooLongError
from atommem.serve import streaming
from atommem.serve.items import text_item
from atommem.serve.schema import Event, NotFoundError
from atommem.serve.streaming import ChatForm
from tests.serve.servers import (
    ask,
    entries,
    event_kinds,
    gated,
    items,
    make_conversations,
    new_conversation,
    respond,
    running,
    scripted,
    until,
)


@pytest.mark.slow
def test_outage_while_reading_is_503_and_the_next_call_continues(tmp_path):
    with gated(tmp_path / "log.db") as (gate, server, http), ThreadPoolExecutor(1) as threads:
        path, other_path = new_conversation(http, "one 1"), new_conversation(http)
        gate.error = OutageError("http://10.0.0.7 is gone")
        refused = http.post(f"{path}/items", json=items("two 2", "three 3"))
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
        stream = respond(http, other_path, "Who?", stream=True).text
        assert "event: response.failed" in stream
        assert "10.0.0.7" not in refused.text + stream
        (unread,) = http.get(f"{path}/items", params={"limit": 1}).json()["data"]
        assert unread["progress"] == {"chunks_read": 0, "chunks": 2}
        gate.error = None
        gate.shut()
        answer = threads.submit(ask, http, path, "three")
        assert gate.entered.wait(10)
        (question,) = server.conversations.log.events(path.rpartition("/")[2], ("ask",))
        with server.http() as other:
            assert other.get(f"/v1/responses/{question.response}").json()["status"] == "in_progress"
        gate.open.set()
        assert answer.result()[1] == "three 3"
        assert [*entries(http, path).values()] == ["one 1", "two 2", "three 3"]
        kinds = event_kinds(server.conversations, path)
        assert kinds[:5] == ["item", "step", "item", "ask", "step"]


def test_item_beyond_the_context_is_stopped_and_later_items_are_read(tmp_path):
    with gated(tmp_path / "log.db") as (gate, server, http):
        path = new_conversation(http)
        gate.error = PromptTooLongError("The prompt has 9 tokens")
        assert http.post(f"{path}/items", json=items("long")).status_code == 400
        assert respond(http, path, "Who?").status_code == 400
        gate.error = None
        http.post(f"{path}/items", json=items("short")).raise_for_status()
        ask(http, path, "Who?")
        shown = http.get(f"{path}/items", params={"order": "asc"}).json()["data"]
        assert [item["status"] for item in shown[:2]] == ["incomplete", "completed"]
        assert "9 tokens" in shown[0]["incomplete_details"]["reason"]
        kinds = event_kinds(server.conversations, path)
        asked = ["ask", "step", "step", "answer"]
        assert kinds == ["item", "stopped", "ask", "item", "step", *asked]


def test_answer_without_box_is_marked_and_steps_show_prompts(tmp_path):
    model = scripted(lambda prompt: "It is Rome.")
    with running(make_conversations(tmp_path / "log.db", model)) as server, server.http() as http:
        path = new_conversation(http, "Ann lives in Rome.")
        response, text = ask(http, path, "Where does Ann live?")
        assert text == "It is Rome."
        message = http.get(f"/v1/responses/{response}").json()["output"][0]
        assert http.get(f"{path}/items", params={"order": "desc"}).json()["data"][0] == message
        assert "without a box" in message["note"]
        assert "no entry was shown" in message["note"]
        asked = {"messages": [{"content": "Where?"}], "conversation": path.rpartition("/")[2]}
        chat = http.post("/v1/chat/completions", json=asked).json()
        assert "without a box" in chat["choices"][0]["message"]["note"]
        stream = http.post("/v1/chat/completions", json={**asked, "stream": True}).text
        assert "without a box" in stream
        steps = http.get(f"{path}/steps").json()["data"]
        assert "Ann lives in Rome." in steps[0]["prompt"]
        assert "Where does Ann live?" in steps[1]["prompt"]


def test_requests_beyond_the_bounds_are_429(tmp_path):
    with gated(tmp_path / "log.db", active=1, max_requests=2) as (gate, server, http):
        paths = [new_conversation(http) for _ in range(3)]
        gate.shut()

        def status(path: str) -> int:
            with server.http() as client:
                return respond(client, path, "Who?").status_code

        with ThreadPoolExecutor(2) as threads:
            waiting = [threads.submit(status, path) for path in paths[:2]]
            until(lambda: server.conversations.requests == 2)
            assert status(paths[2]) == 429
            gate.open.set()
            assert [answer.result() for answer in waiting] == [200, 200]


@pytest.mark.slow
def test_shutdown_completes_requests_in_progress(tmp_path):
    with ThreadPoolExecutor(1) as threads:
        with gated(tmp_path / "log.db") as (gate, server, _):
            gate.shut()
            url = f"{server.url}/v1/responses"
            answer = threads.submit(httpx.post, url, json={"input": "Who?"}, timeout=20)
            assert gate.entered.wait(10)
            threading.Timer(0.3, gate.open.set).start()
        assert answer.result().status_code == 200


async def test_deleted_item_and_forgotten_source_are_not_read(conversations):
    name = conversations.log.create("local", {}).id
    texts = ("Ann lives in Rome.", "Bob lives in Oslo.", "Cid sings.")
    async with conversations.use(name, "local") as held:
        *_, item = await held.add([text_item(text, text.split()[0]) for text in texts])
        await held.forget(item=item.item)
        await held.forget("Ann")
        [step async for step in held.read()]
        found = [entry.text for entry in held.session.memory.contents.entries.values()]
    assert found == ["Bob lives in Oslo."]


async def test_another_gateway_shows_nothing_forgotten_or_erased(conversations, tmp_path):
    other = make_conversations(tmp_path / "log.db")
    name = other.log.create("local", {}).id

    async def recalled() -> int:
        async with other.use(name, "local") as held:
            return len(await held.recall("PIN"))

    async with conversations.use(name, "local") as held:
        await held.add([text_item("My PIN is 1234.", "letter")])
        [step async for step in held.read()]
        assert await recalled() == 1
        await held.forget("letter")
        assert await recalled() == 0
    await conversations.erase(name, "local")
    with pytest.raises(NotFoundError):
        await recalled()


async def test_stream_that_nobody_reads_does_not_stop_the_work_and_a_silent_one_is_pinged(
    monkeypatch,
):
    ended = asyncio.Event()

    async def events(silent: bool) -> AsyncGenerator[Any, None]:
        for _ in range(3):
            yield Event("ask", response="resp_7")
        ended.set()
        if silent:
            await asyncio.Event().wait()

    request: Any = SimpleNamespace(receive=asyncio.Event().wait)
    monkeypatch.setattr(streaming, "_PING_SECONDS", 0.01)
    for silent in (False, True):
        ended.clear()
        form = ChatForm("model")
        response: Any = await streaming.respond(request, events(silent), form, True)
        stream = response.body_iterator
        await anext(stream)
        await asyncio.wait_for(ended.wait(), 5)
        rest = [await anext(stream) for _ in range(2)]
        assert await anext(stream, "") == (": ping\n\n" if silent else "")
        assert all("chatcmpl-7" in text for text in rest), "the id that the log has"
        await stream.aclose()
