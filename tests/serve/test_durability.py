"""What a server acknowledged survives kill -9, on SQLite and with two gateways on PostgreSQL."""

from __future__ import annotations

import glob
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from atommem.memory.log import replay
from atommem.serve.app import make_app, run
from atommem.serve.conversation_log import ConversationLog
from atommem.serve.schema import open_database
from atommem.servers.vllm_process import free_port
from tests.serve.servers import items, make_conversations, new_conversation, until

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


class Client:
    """Gives texts and asks until the gateway is gone; remembers what was acknowledged."""

    def __init__(self, url: str, paths: list[str], seed: str) -> None:
        self.url, self.paths, self.random = url, paths, random.Random(seed)
        self.texts: list[tuple[str, str]] = []
        self.answers: list[str] = []

    def run(self, end: threading.Event) -> None:
        with suppress(httpx.HTTPError), httpx.Client(base_url=self.url, timeout=10) as http:
            while not end.is_set():
                path, text = self.random.choice(self.paths), f"case {self.random.random()} closed"
                if self.random.random() < 0.5:
                    if http.post(f"{path}/items", json=items(text)).status_code == 200:
                        self.texts.append((path, text))
                    continue
                body = {"conversation": path.rpartition("/")[2], "input": text, "stream": True}
                events = http.post("/v1/responses", json=body).text
                if "event: response.completed" in events:
                    self.answers.append(events.partition('"id":"resp_')[2].partition('"')[0])


def check_log(log: ConversationLog, path: str) -> set[str]:
    """Return the texts of all created entries, after checking that nothing is half there."""
    name = path.rpartition("/")[2]
    events, operations = log.events(name), log.load(name, "local", "none").operations
    replay(operations)
    rows = log.operations(name)
    assert [row["seq"] for row in rows] == list(range(len(rows)))
    steps = [event for event in events if event.kind == "step"]
    assert [step.step for step in steps] == list(range(len(steps)))
    for step in steps:
        written = [row for row in rows if row["version"] == step.version]
        policy = [row for row in written if row.get("actor", "policy") == "policy"]
        memory = [item for item in step.body["actions"] if item["kind"] != "answer"]
        assert len(policy) == len(memory)
    return {item.after or "" for item in operations if item.kind == "create"}


@pytest.mark.slow
def test_kill_9_under_load_loses_nothing_acknowledged(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    gateway = Gateway(url)
    gateway.start()
    with httpx.Client(base_url=gateway.url, timeout=30) as http:
        paths = [new_conversation(http) for _ in range(4)]
    clients: list[Client] = []
    for kill in range(5):
        end = threading.Event()
        now = [Client(gateway.url, paths, f"{kill}/{number}") for number in range(4)]
        with ThreadPoolExecutor(4) as threads:
            for client in now:
                threads.submit(client.run, end)
            until(lambda now=now: sum(len(client.texts) for client in now) > 5, 60)
            end.wait(kill / 10)
            gateway.kill()
            end.set()
        clients += now
        gateway.start()
    log = ConversationLog(open_database(url))
    texts = {path: check_log(log, path) for path in paths}
    acknowledged = [item for client in clients for item in client.texts]
    assert len(acknowledged) >= 30
    assert [text for path, text in acknowledged if text not in texts[path]] == []
    with httpx.Client(base_url=gateway.url) as http:
        for response in [item for client in clients for item in client.answers]:
            assert http.get(f"/v1/responses/resp_{response}").json()["status"] == "completed"
    gateway.kill()


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """A PostgreSQL server in `folder`; yields its URL."""
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


@pytest.mark.slow
@pytest.mark.skipif(POSTGRES is None, reason="PostgreSQL is not installed")
def test_two_gateways_on_postgresql_write_once_when_one_is_killed() -> None:
    # Not tmp_path: the user postgres cannot enter root's folders.
    with TemporaryDirectory() as folder, postgres(Path(folder)) as url:
        first, second = Gateway(url), Gateway(url)
        first.start()
        second.start()
        with httpx.Client(base_url=first.url, timeout=30) as http:
            paths = [new_conversation(http) for _ in range(4)]
        done = threading.Semaphore(0)

        def write(number: int) -> None:
            body = items(f"case {number} is closed")
            headers = {"Idempotency-Key": str(number)}
            for gateway in ((first, second)[number % 2], second):
                with suppress(httpx.HTTPError):
                    target = f"{gateway.url}{paths[number % 4]}/items"
                    httpx.post(target, json=body, headers=headers, timeout=60).raise_for_status()
            done.release()

        with ThreadPoolExecutor(8) as threads:
            writes = [threads.submit(write, number) for number in range(80)]
            for _ in range(30):
                done.acquire()
            first.kill()
            assert [write.result() for write in writes] == [None] * 80
        log = ConversationLog(open_database(url))
        for number, path in enumerate(paths):
            check_log(log, path)
            held, _ = log.memory_at(path.rpartition("/")[2])
            texts = sorted(entry.text for entry in held.entries.values())
            assert texts == sorted(f"case {case} is closed" for case in range(number, 80, 4))
        log.engine.dispose()
        second.kill()
