"""Repeated requests write once, and what a server acknowledged survives kill -9.

Two gateways share a database, SQLite or PostgreSQL.
"""

import glob
import itertools
import multiprocessing
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from atommem.errors import OutageError
from atommem.serve.app import make_app, run
from atommem.servers.vllm_process import free_port
from tests.fakes import full_disk
from tests.serve.servers import (
    KEYS,
    Running,
    entries,
    event_kinds,
    gated,
    items,
    make_conversations,
    new_conversation,
    running,
    until,
)

POSTGRES = next(iter(sorted(glob.glob("/usr/lib/postgresql/*/bin"))), None)


class Gateway:
    """A server in a process of its own, on a port that stays."""

    def __init__(self, url: str) -> None:
        self._database, self._port = url, free_port()
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._process = multiprocessing.get_context("fork").Process(target=self._run)
        self._process.start()
        until(self._ready, 60)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def _run(self) -> None:
        app = make_app(make_conversations(self._database))
        run(app, host="127.0.0.1", port=self._port, log_level="error")

    def _ready(self) -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/ready").status_code == 200
        return False


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    import psycopg

    assert POSTGRES is not None
    port, data = free_port(), str(folder / "data")
    user: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(folder, "postgres")
        user = ["runuser", "-u", "postgres", "--"]
    flags: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL}
    initdb = [f"{POSTGRES}/initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"]
    subprocess.run([*user, *initdb], check=True, **flags)
    server = [f"{POSTGRES}/postgres", "-D", data, "-p", str(port), "-k", str(folder)]
    server += ["-c", "listen_addresses=127.0.0.1"]
    flags["stderr"] = subprocess.DEVNULL
    process = subprocess.Popen([*user, *server], start_new_session=True, **flags)
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres"

    def connects() -> bool:
        with suppress(psycopg.OperationalError):
            psycopg.connect(url, connect_timeout=5).close()
            return True
        return False

    try:
        until(connects, 60)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    # Not tmp_path: the user postgres cannot enter root's folders.
    with TemporaryDirectory() as folder:
        if request.param == "sqlite":
            yield f"sqlite:///{folder}/log.db"
        elif POSTGRES is None:
            pytest.skip("PostgreSQL is not installed")
        else:
            with postgres(Path(folder)) as server:
                yield server


@pytest.mark.slow
def test_two_gateways_under_load_write_once_and_lose_nothing_after_kill_9(url: str) -> None:
    first, second = gateways = Gateway(url), Gateway(url)
    for gateway in gateways:
        gateway.start()
    with httpx.Client(base_url=first.url, timeout=30) as http:
        paths = [new_conversation(http) for _ in range(4)]
    done = threading.Semaphore(0)

    def write(number: int) -> set[str]:
        """Send a request to one gateway, then to the other; return the ids of the answers."""
        path, text = paths[number % 4], f"case {number} is closed"
        route, body = f"{path}/items", items(text)
        if number % 3 == 0:
            body = {"conversation": path.rpartition("/")[2], "input": text}
            route = "/v1/responses"
        ids = set()
        for gateway in (first, second):
            with suppress(httpx.TransportError):
                headers = {"Idempotency-Key": str(number)}
                found = httpx.post(gateway.url + route, json=body, headers=headers, timeout=60)
                answer = found.raise_for_status().json()
                ids.add(answer.get("id") or answer["data"][0]["id"])
        done.release()
        return ids

    with ThreadPoolExecutor(8) as threads:
        writes = [threads.submit(write, number) for number in range(120)]
        for _ in range(3):
            for _ in range(25):
                done.acquire()
            first.kill()
            first.start()
        assert [len(found.result()) for found in writes] == [1] * 120
    conversations = make_conversations(url)
    for number, path in enumerate(paths):
        kinds = event_kinds(conversations, path)
        assert [kinds.count(kind) for kind in ("item", "ask", "answer")] == [20, 10, 10]
        memory, _ = conversations.log.memory_at(path.rpartition("/")[2])
        texts = sorted(entry.text for entry in memory.entries.values())
        # What a question tells is read once, too, the last one's with the next call.
        unread = conversations.log.unread(path.rpartition("/")[2])
        assert len({*texts}) == len(texts) == 30 - len(unread)
        assert {*texts} >= {f"case {case} is closed" for case in range(number, 120, 4) if case % 3}
    conversations.log.engine.dispose()
    for gateway in gateways:
        gateway.kill()


def count_rows(server: Running) -> tuple[int, int]:
    log = server.conversations.log
    found = log.conversations("local")
    return len(found), sum(len(log.events(info.id)) for info in found)


@pytest.mark.slow
def test_full_disk_refuses_a_text_and_loses_none(tmp_path: Path) -> None:
    with running(make_conversations(tmp_path / "log.db")) as server, server.http() as http:
        path = new_conversation(http, "Ann lives in Rome.")
        with full_disk((tmp_path / "log.db-wal").stat().st_size):
            refused = http.post(f"{path}/items", json=items("Bob sings."))
        assert (refused.status_code, "Retry-After" in refused.headers) == (503, True)
        http.post(f"{path}/items", json=items("Bob sings.")).raise_for_status()
        assert [*entries(http, path).values()] == ["Ann lives in Rome.", "Bob sings."]


def test_every_write_with_a_key_happens_once(tmp_path: Path) -> None:
    with running(make_conversations(tmp_path / "log.db")) as server, server.http() as http:
        path = new_conversation(http, "Ann lives in Rome.")
        name = path.rpartition("/")[2]
        messages = [{"content": "Bob sings."}, {"content": "Who sings?"}]
        requests: list[tuple[str, dict[str, Any]]] = [
            ("/v1/conversations", items("Dan runs.")),
            (f"{path}/items", items("Eve reads.", "Eve writes.")),
            ("/v1/responses", {"conversation": name, "input": messages}),
            ("/v1/responses", {"conversation": name, "input": messages, "stream": True}),
            ("/v1/chat/completions", {"conversation": name, "messages": messages}),
            (f"{path}/entries/1", {"text": "Ann lives in Oslo."}),
            (f"{path}/fork", {}),
        ]
        for number, (route, body) in enumerate(requests):
            http.headers["Idempotency-Key"] = str(number)
            before = count_rows(server)
            first = http.post(route, json=body).raise_for_status()
            written = count_rows(server)
            assert written > before, route
            again = http.post(route, json=body).raise_for_status()
            assert count_rows(server) == written, route
            if "stream" in body:
                assert again.text.count("event: response.completed") == 1
            else:
                assert again.json().get("id") == first.json().get("id")


@pytest.mark.slow
def test_request_repeated_after_a_disconnect_continues_the_turn(tmp_path: Path) -> None:
    with gated(tmp_path / "log.db") as (gate, server, http), ThreadPoolExecutor(1) as threads:
        path = new_conversation(http, "Ann lives in Rome.")
        name = path.rpartition("/")[2]
        body = {"conversation": name, "input": "Where does Ann live?", "stream": True}
        http.headers["Idempotency-Key"] = "once"
        gate.shut()
        timeout = httpx.Timeout(30, read=2)
        sent = threads.submit(http.post, "/v1/responses", json=body, timeout=timeout)
        assert gate.entered.wait(20)
        assert isinstance(sent.exception(), httpx.ReadTimeout)
        assert gate.cancelled.wait(10)
        gate.open.set()
        log = server.conversations.log
        until(lambda: log.events(name, ("ask",)))
        (question,) = log.events(name, ("ask",))
        found = http.get(f"/v1/responses/{question.response}").json()
        assert found["incomplete_details"] == {"reason": "interrupted"}
        assert "Rome" in http.post("/v1/responses", json=body).raise_for_status().text
        kinds = event_kinds(server.conversations, path)
        assert [kind for kind in kinds if kind != "step"] == ["item", "ask", "answer"]


def test_key_belongs_to_one_request_of_one_owner(tmp_path: Path) -> None:
    once = {"Idempotency-Key": "8e03978e-40d5-43dd-bc93-6894a57f9324"}
    owners = {key: owner for owner, key in KEYS.items()}
    with (
        running(make_conversations(tmp_path / "log.db"), owners) as server,
        server.http(KEYS["ann"]) as ann,
        server.http(KEYS["bob"]) as bob,
    ):
        name = ann.post("/v1/conversations", json={}, headers=once).json()["id"]
        reused = ann.post("/v1/conversations", json={"metadata": {}}, headers=once)
        assert reused.status_code == 422
        assert reused.json()["error"]["code"] == "idempotency_key_reused"
        assert bob.post("/v1/conversations", json={}, headers=once).json()["id"] != name
        ann.delete(f"/v1/conversations/{name}").raise_for_status()
        assert ann.post("/v1/conversations", json={}, headers=once).json()["id"] != name


@pytest.mark.slow
def test_equal_request_after_a_failure_writes_once(tmp_path: Path) -> None:
    """Each POST without a key, after an outage and after a client that was gone."""
    with gated(tmp_path / "log.db") as (gate, server, http):
        name = new_conversation(http).rpartition("/")[2]
        place: dict[str, Any] = {"conversation": name}
        routes: list[tuple[str, Callable[[list[Any]], dict[str, Any]]]] = [
            ("/v1/conversations", lambda new: {"items": new}),
            (f"/v1/conversations/{name}/items", lambda new: {"items": new}),
            ("/v1/responses", lambda new: {**place, "input": new}),
            ("/v1/responses", lambda new: {**place, "input": new, "stream": True}),
            ("/v1/responses", lambda new: {"input": new}),
            ("/v1/chat/completions", lambda new: {**place, "messages": new}),
        ]
        numbers = itertools.count()
        for route, body_of in routes:
            written = []
            for failure in ("none", "outage", "outage", "gone"):
                before = count_listed(server)
                told = f"Ann sings song {next(numbers)}."
                body = body_of([{"content": told}, {"content": "Who sings?"}])
                if failure == "outage":
                    gate.error = OutageError("gone")
                    for _ in range(2):
                        failed = http.post(route, json=body)
                        assert failed.status_code == 503 or "response.failed" in failed.text
                    gate.error = None
                if failure == "gone":
                    gate.shut()
                    with suppress(httpx.ReadTimeout):
                        http.post(route, json=body, timeout=httpx.Timeout(30, read=0.3))
                    assert gate.cancelled.wait(10)
                    time.sleep(0.2)  # until the failure is recorded
                    gate.open.set()
                http.post(route, json=body).raise_for_status()
                written.append(
                    [
                        after - count
                        for after, count in zip(count_listed(server), before, strict=True)
                    ]
                )
            assert written == [written[0]] * 4, route


def count_listed(server: Running) -> list[int]:
    log = server.conversations.log
    found = log.conversations("local", prefix="")
    counts = [
        len(log.items(info.id, [kind])) for info in found for kind in ("item", "ask", "answer")
    ]
    return [len(found), *(sum(counts[kind::3]) for kind in range(3))]


def test_retry_of_openai_s_client_after_a_lost_answer_writes_once(tmp_path: Path) -> None:
    with running(make_conversations(tmp_path / "log.db")) as server, server.http() as http:
        for route, body in (
            ("/v1/conversations", items("Dan runs.")),
            ("/v1/responses", {"input": "I sing. Who sings?"}),
        ):
            first = http.post(route, json=body).json()["id"]
            again = http.post(route, json=body, headers={"X-Stainless-Retry-Count": "1"})
            assert again.json()["id"] == first
            assert http.post(route, json=body).json()["id"] != first
