"""Conversations in use: disconnects, outages, bounds, other gateways; and their durable log."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from atommem.errors import ConfigError, DataError, OutageError, PromptTooLongError
from atommem.memory.log import Operation, Outcome, Source, replay, to_json
from atommem.memory.store import TextVectors, digests_of
from atommem.serve import streaming
from atommem.serve.conversation_log import ConversationLog
from atommem.serve.items import text_item
from atommem.serve.schema import ConflictError, Event, NotFoundError, open_database, schema_version
from atommem.serve.streaming import ChatForm
from tests.serve.servers import (
    ask,
    entries,
    event_kinds,
    gated,
    items,
    make_conversations,
    new_conversation,
    opened,
    respond,
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
    with opened(tmp_path, scripted(lambda prompt: "It is Rome.")) as (_, http):
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


async def test_stream_that_nobody_reads_stops_no_work_and_a_silent_one_is_pinged(monkeypatch):
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


# The log: durable, whole, and one winner among writers ---


SOURCE = Source(0, "a, chunk 1/1", 2, 5)
OPERATIONS = [
    Operation(0, "create", entry_id=1, after="", source=SOURCE, details={"type": "note"}),
    Operation(0, "update", Outcome.UNKNOWN_HANDLE, handle=9),
    Operation(0, "create", entry_id=2, after="é\u2028☃", score=0.1, reason="cut"),
    Operation(0, "read", after="who?"),
    Operation(0, "retrieve", actor="memory", scores=((1, 0.123456789012345678), (2, -1e-9))),
]


@pytest.fixture
def log(tmp_path: Path) -> ConversationLog:
    return ConversationLog(open_database(f"sqlite:///{tmp_path / 'log.db'}"))


def commit(
    log: ConversationLog, name: str, version: int, written: Sequence[Operation] = (), **more: Any
) -> None:
    operations = [to_json(operation) for operation in written]
    event = Event("step", step=version - 1, version=version, operations=operations, tokens=7)
    log.commit(name, [replace(event, embedder="words/4")], **more).result()


def test_load_after_commit_returns_operations_and_vectors_exactly(log):
    name = log.create("ann", {"goal": "x"}).id
    rows = np.array([[0.5, 0.25, 0, 0], [0.1, 0.2, 0.3, 0.4]], dtype=np.float32)
    cached = TextVectors("words/4", digests_of(["", "é\u2028☃"], "entry"), rows)
    commit(log, name, 1, OPERATIONS, cached=cached)
    state, found = log.load(name, "ann", "words/4")
    assert found.operations == tuple(OPERATIONS)
    assert (state.version, state.embedder, found.steps, found.sampled) == (1, "words/4", 1, 7)
    assert found.vectors is not None
    places = np.argsort(found.vectors.digests)
    assert np.array_equal(found.vectors.digests[places], np.sort(cached.digests))
    assert np.array_equal(found.vectors.rows[places], rows[np.argsort(cached.digests)])
    assert log.load(name, "ann", "others/4")[1].vectors is None


def test_concurrent_commits_of_one_version_have_one_winner(log):
    names = [log.create("ann", {}).id for _ in range(12)]

    def write(number: int) -> str:
        try:
            commit(log, names[number % 12], 1, OPERATIONS)
        except ConflictError:
            return "lost"
        return "won"

    with ThreadPoolExecutor(16) as threads:
        assert sorted(threads.map(write, range(16))) == ["lost"] * 4 + ["won"] * 12
    assert all(len(log.operations(name)) == 5 for name in names)


def test_memory_at_and_fork_take_any_number_of_operations(log):
    name = log.create("ann", {}).id
    commit(log, name, 1, OPERATIONS)
    more = [Operation(1, "delete", entry_id=1, before="")]
    commit(log, name, 2, more)
    for length in range(7):
        expected = replay((OPERATIONS + more)[:length])
        assert log.memory_at(name, length) == (expected, 6)
        assert log.memory_at(log.fork(name, "ann", length).id) == (expected, length)
    for call in (log.memory_at, lambda name, at: log.fork(name, "ann", at)):
        with pytest.raises(DataError, match="at=7: this conversation has 6 operations"):
            call(name, 7)


def test_erase_leaves_no_byte_and_other_owners_see_nothing(log, tmp_path):
    name = log.create("ann", {}).id
    commit(log, name, 1, [replace(OPERATIONS[0], after="the vault opens with 7151")])
    for call in (log.info, log.erase):
        with pytest.raises(NotFoundError):
            call(name, "bob")
    log.erase(name, "ann")
    with pytest.raises(NotFoundError):
        log.info(name, "ann")
    with pytest.raises(ConflictError):
        commit(log, name, 2)
    log.engine.dispose()
    assert all(b"7151" not in path.read_bytes() for path in tmp_path.iterdir())


def test_open_database_of_an_earlier_version_leaves_the_file(log, tmp_path):
    with log.engine.begin() as connection:
        schema_version.drop(connection)
    log.engine.dispose()
    before = (tmp_path / "log.db").read_bytes()
    with pytest.raises(ConfigError, match="Give a new database"):
        open_database(f"sqlite:///{tmp_path / 'log.db'}")
    assert (tmp_path / "log.db").read_bytes() == before
