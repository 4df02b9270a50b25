"""What a server acknowledged survives kill -9, with two gateways on SQLite and PostgreSQL."""

from __future__ import annotations

import glob
import multiprocessing
import os
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

from atommem.serve.app import make_app, run
from atommem.servers.vllm_process import free_port
from tests.serve.servers import event_kinds, items, make_conversations, new_conversation, until

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


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a new database."""
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
        cases = (case for case in range(number, 120, 4) if case % 3)
        assert texts == sorted(f"case {case} is closed" for case in cases)
    conversations.log.engine.dispose()
    for gateway in gateways:
        gateway.kill()
