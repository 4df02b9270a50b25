"""Two gateways on one database, of which something is killed under load."""

import glob
import itertools
import logging
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg

from atommem.serve.app import make_app, run
from atommem.serve.items import item_of
from atommem.servers.vllm_process import free_port
from tests.serve.servers import event_kinds, items, make_conversations, new_conversation, until

POSTGRES = next(iter(sorted(glob.glob("/usr/lib/postgresql/*/bin"))), None)
PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
CONVERSATIONS = 16


class Gateway:
    """A server in a process of its own, on a port that stays."""

    def __init__(self, url: str) -> None:
        self._database, self._port = url, free_port()
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        # Not "fork": the process that asks has threads.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        arguments = self._database, self._port
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        until(self._ready, 60)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def restart(self) -> None:
        self.kill()
        self.start()

    def _ready(self) -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/ready").status_code == 200
        return False


def _serve(database: str, port: int) -> None:
    logging.disable()
    app = make_app(make_conversations(database))
    run(app, host="127.0.0.1", port=port, log_level="error")


class Database:
    """A database at `url`, and what can be killed of it beside its gateways."""

    def __init__(self, url: str, **kills: Callable[[], None]) -> None:
        self.url, self.kills = url, kills


@contextmanager
def sqlite(folder: Path) -> Iterator[Database]:
    yield Database(f"sqlite:///{folder}/log.db")


@contextmanager
def postgres(folder: Path) -> Iterator[Database]:
    assert POSTGRES is not None
    port, data = free_port(), str(folder / "data")
    initdb = [f"{POSTGRES}/initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"]
    subprocess.run([*_as_user(folder), *initdb], check=True, cwd=folder, stdout=subprocess.DEVNULL)
    server = [f"{POSTGRES}/postgres", "-D", data, "-p", str(port), "-k", str(folder)]
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres"

    def kill_connection() -> None:
        """Kill a process of a connection; return when all are dropped and the server is back."""
        query = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
        with suppress(psycopg.OperationalError), psycopg.connect(url, autocommit=True) as own:
            found = [pid for (pid,) in own.execute(query) if pid != own.info.backend_pid]
            os.kill(random.choice(found), signal.SIGKILL)
            while True:
                own.execute("SELECT 1")
        until(partial(_connects, url), 60)

    server += ["-c", "listen_addresses=127.0.0.1", "-c", "hot_standby=off"]
    process = _start(server, folder, url)
    try:
        yield Database(url, connection=kill_connection)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait()


@contextmanager
def pgbouncer(folder: Path) -> Iterator[Database]:
    """PostgreSQL behind pgbouncer, which lends a connection for a transaction."""
    assert PGBOUNCER is not None
    with postgres(folder) as database:
        port, target = free_port(), httpx.URL(database.url)
        settings = folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\npostgres = host=127.0.0.1 port={target.port} user=postgres\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            "auth_type = any\npool_mode = transaction\ndefault_pool_size = 8\n"
            "server_login_retry = 1\n"
        )
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        start = partial(_start, [PGBOUNCER, "-q", str(settings)], folder, url)
        processes = [start()]

        def kill_pgbouncer() -> None:
            os.killpg(processes[0].pid, signal.SIGKILL)
            processes[0].wait()
            processes[0] = start()

        try:
            yield Database(url, **database.kills, pgbouncer=kill_pgbouncer)
        finally:
            os.killpg(processes[0].pid, signal.SIGKILL)
            processes[0].wait()


def _as_user(folder: Path) -> list[str]:
    if os.geteuid() != 0:
        return []
    shutil.chown(folder, "postgres")  # PostgreSQL and pgbouncer refuse to run as root
    return ["runuser", "-u", "postgres", "--"]


def _start(command: list[str], folder: Path, url: str) -> subprocess.Popen[bytes]:
    streams: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    streams |= {"cwd": folder, "start_new_session": True}
    process = subprocess.Popen([*_as_user(folder), *command], **streams)

    until(partial(_connects, url), 60)
    return process


def _connects(url: str) -> bool:
    with suppress(psycopg.OperationalError):
        psycopg.connect(url, connect_timeout=5).close()
        return True
    return False


DATABASES: Mapping[str, tuple[Callable[[Path], AbstractContextManager[Database]], bool]] = {
    "sqlite": (sqlite, True),
    "postgresql": (postgres, POSTGRES is not None),
    "pgbouncer": (pgbouncer, POSTGRES is not None and PGBOUNCER is not None),
}
"""How each is started, and whether it is installed."""


def kill_under_load(database: Database, kills: int, writes: int = 8) -> dict[str, Any]:
    """Write with 8 clients, and kill by turns after each `writes` requests.

    A client repeats its request, by turns at both gateways, until one acknowledges it, and sends it
    once more. Returns counts: `lost` texts and answers, `doubled` ones, and errors by status.
    """
    gateways = [Gateway(database.url), Gateway(database.url)]
    for gateway in gateways:
        gateway.start()
    with httpx.Client(base_url=gateways[0].url, timeout=30) as http:
        paths = [new_conversation(http) for _ in range(CONVERSATIONS)]
    numbers, errors = itertools.count(), Counter[str]()
    stopped, failed, done = threading.Event(), threading.Event(), threading.Semaphore(0)

    def write() -> dict[int, set[str]]:
        ids: dict[int, set[str]] = {}
        while not stopped.is_set():
            number = next(numbers)
            ids[number] = set()
            for first in (0, 1):
                for turn in itertools.count(first):
                    if name := send(number, gateways[turn % 2]):
                        break
                    if failed.wait(0.05):
                        return ids
                ids[number].add(name)
            done.release()
        return ids

    def send(number: int, gateway: Gateway) -> str:
        path, text = paths[number % CONVERSATIONS], f"case {number} is closed"
        route, body = f"{path}/items", items(text)
        if number % 3 == 0:
            body = {"conversation": path.rpartition("/")[2], "input": text}
            route = "/v1/responses"
        headers = {"Idempotency-Key": str(number)}
        try:
            found = httpx.post(gateway.url + route, json=body, headers=headers, timeout=60)
        except httpx.TransportError:
            errors["no answer"] += 1
            return ""
        if found.is_error:
            errors[str(found.status_code)] += 1
            return ""
        answer = found.json()
        return str(answer.get("id") or answer["data"][0]["id"])

    steps = itertools.cycle([*(gateway.restart for gateway in gateways), *database.kills.values()])
    with ThreadPoolExecutor(8) as threads:
        clients = [threads.submit(write) for _ in range(8)]
        try:
            for kill in itertools.islice(steps, kills):
                for _ in range(writes):
                    assert done.acquire(timeout=120), "the gateways do not come back"
                kill()
        except BaseException:
            failed.set()  # the gateways may never answer again
            raise
        finally:
            stopped.set()
        ids = {number: names for client in clients for number, names in client.result().items()}
    for gateway in gateways:
        gateway.kill()
    counts = _compare(database.url, paths, ids)
    return {"kills": kills, "writes": len(ids), **counts, "errors": dict(errors)}


def _compare(url: str, paths: list[str], ids: Mapping[int, set[str]]) -> dict[str, int]:
    """Compare what was acknowledged with what the database has."""
    expected, found = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    conversations = make_conversations(url)
    log = conversations.log
    for place, path in enumerate(paths):
        name = path.rpartition("/")[2]
        found["answer", name] = event_kinds(conversations, path).count("answer")
        asked = log.items(name, ("item", "ask"))
        texts = {event.version: item_of(event)["content"][0]["text"] for event in asked}
        found += Counter(("written", text) for text in texts.values())
        memory, _ = log.memory_at(name)
        found += Counter(("read", entry.text) for entry in memory.entries.values())
        # What a question tells is read with the next call.
        unread = {texts[version] for version in log.unread(name, [*texts])[0]}
        for number in range(place, max(ids) + 1, CONVERSATIONS):
            text, asks = f"case {number} is closed", number % 3 == 0
            if number in ids:
                expected["written", text] += 1
                expected["answer", name] += asks
                expected["read", text] += not (asks and text in unread)
    log.engine.dispose()
    others = sum(len(names) - 1 for names in ids.values())
    return {"lost": (expected - found).total(), "doubled": (found - expected).total() + others}
