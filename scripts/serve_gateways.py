"""Gateways in processes of their own, with a policy that follows a script at a fixed latency: for benches of serving.

The script keeps every text as an entry, looks for what is asked, and answers with the entry that fits best. It is in
the gateway's own process, so that what is measured is the gateway: no HTTP to an engine and no tokens are in it.
"""

from __future__ import annotations

import asyncio
import gc
import glob
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from quick import ATOMMEM

from atommem.face.engine import Engine
from atommem.policy.contract import Completion, Sampling
from atommem.rough_tokens import RoughTokenizer
from atommem.servers.vllm_process import free_port

_CHUNK = re.compile(r"of the text:\n(.*?)\n\nYour scratchpad", re.DOTALL)
_QUESTION = re.compile(r"Question:\n(.*)")
_QUERY = re.compile(r"Your current query:\n(.*)")
_ENTRY = re.compile(r"^Memory \d+: (.*)", re.MULTILINE)


class Secretary:
    """A chat policy: `latency` seconds a completion, and what the script says."""

    def __init__(self, latency: float) -> None:
        self.tokenizer = RoughTokenizer()
        self.latency = latency

    async def complete_chat(self, messages: list[dict[str, str]], sampling: Sampling) -> Completion:
        """The script's answer, after the latency."""
        ends = time.perf_counter() + self.latency
        text = script("\n".join(message["content"] for message in messages))
        await asyncio.sleep(max(0.0, ends - time.perf_counter()))
        return Completion([], [], text, "stop", 100, 10)

    async def close(self) -> None:
        """Nothing to free."""


def script(prompt: str) -> str:
    """What the policy writes after a prompt in the templates ``full``."""
    chunk, question, query = _CHUNK.search(prompt), _QUESTION.search(prompt), _QUERY.search(prompt)
    asked = question[1] if question else ""
    if chunk is not None:
        return f"<create_memory>{chunk[1]}</create_memory>"
    if query is None or query[1] != asked:
        return f"<read_memory>{asked}</read_memory>"
    return f"<final_answer>\\boxed{{{(_ENTRY.findall(prompt) or ['nothing'])[0]}}}</final_answer>"


def run_gateway(url: str, port: int, latency: float, bounds: dict[str, Any]) -> None:
    """Serve until the process ends."""
    from atommem.serve.app import make_app, run
    from atommem.serve.conversation_log import ConversationLog
    from atommem.serve.conversations import Conversations
    from atommem.serve.resources import Resources
    from atommem.serve.schema import open_database
    from atommem.serve.served_model import ServedModel

    engine = Engine.open(Secretary(latency), embedder="hashing", max_reads=2)  # type: ignore[arg-type]
    model = ServedModel.from_engine(engine, "secretary", "script")
    resources = Resources(model, ConversationLog(open_database(url)), active=256)
    app = make_app(Conversations(resources, **bounds))
    gc.unfreeze()  # what a bench froze before the fork; `run` freezes all that is loaded, as in `atommem serve`
    run(app, host="127.0.0.1", port=port, log_level="error")


class Gateway:
    """One gateway; `start`, `kill` and `start` again. Its port, and so its URL, stays.

    Args:
        database: URL of the database.
        latency: Of the policy, seconds.
        bounds: Of `Resources` and `Conversations`.
    """

    def __init__(self, database: str, latency: float = 0.0, **bounds: Any) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._arguments = (database, self._port, latency, bounds)
        self._process: Any = None

    @property
    def pid(self) -> int:
        """Of its process."""
        return int(self._process.pid)

    def start(self) -> None:
        """Start it, and wait until it is ready. It is forked: all that it imports is loaded already."""
        self._process = multiprocessing.get_context("fork").Process(
            target=run_gateway, args=self._arguments
        )
        self._process.start()
        if not answers(f"{self.url}/ready", self._process.is_alive, 60):
            raise RuntimeError("a gateway did not start")

    def kill(self) -> None:
        """End it as power loss would end the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()


def answers(url: str, running: Callable[[], bool], seconds: float) -> bool:
    """Wait until `url` is there; whether it is, before its process or the time has ended."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and running():
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return True
        except httpx.HTTPError:
            time.sleep(0.02)
    return False


@contextmanager
def started(command: Sequence[str], ready: str, log: Path, **settings: Any) -> Iterator[None]:
    """A process that answers at the URL `ready`, until the block ends."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, **settings)
    try:
        # vLLM, where it starts one, takes a minute and more.
        if not answers(ready, lambda: process.poll() is None, 600):
            raise RuntimeError(
                f"{' '.join(command[:4])} ... did not start: {log.read_text()[-2000:]}"
            )
        yield
    finally:
        process.terminate()
        process.wait(90)


@contextmanager
def serving(flags: Sequence[str], out: Path) -> Iterator[str]:
    """`atommem serve` itself in a process of its own, over a new database in `out`; its URL."""
    port, db = free_port(), out / "conversations.db"
    for file in out.glob(f"{db.name}*"):
        file.unlink()
    command = [*ATOMMEM, "serve", "--db", f"sqlite:///{db}", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with started([*command, *flags], f"{url}/ready", out / "serve.log"):
        yield url


def postgres_programs() -> Path | None:
    """The folder of PostgreSQL's server programs: Debian's, or those on the path."""
    found = shutil.which("initdb")
    places = [Path(name) for name in sorted(glob.glob("/usr/lib/postgresql/*/bin"))]
    places += [Path(found).resolve().parent] if found else []
    return next((place for place in places if (place / "postgres").exists()), None)


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """A PostgreSQL of its own in `folder`, on a free port of this machine; its URL."""
    import psycopg

    programs = postgres_programs()
    assert programs is not None, "look for the programs first"
    port = free_port()
    folder.mkdir(parents=True)
    as_user: list[str | Path] = []
    if os.geteuid() == 0:  # it refuses to run as root
        shutil.chown(folder, "postgres")
        as_user = ["runuser", "-u", "postgres", "--"]
    data = folder / "data"
    make: list[str | Path] = [
        programs / "initdb",
        "-D",
        data,
        "-A",
        "trust",
        "-U",
        "postgres",
        "--no-sync",
    ]
    subprocess.run([*as_user, *make], check=True, stdout=subprocess.DEVNULL, cwd=folder)
    command: list[str | Path] = [programs / "postgres", "-D", data, "-p", str(port), "-k", folder]
    command += ["-c", "listen_addresses=127.0.0.1"]
    log = (folder / "server.log").open("w")
    process = subprocess.Popen(
        [*as_user, *command], cwd=folder, stdout=log, stderr=log, start_new_session=True
    )
    try:
        for _ in range(300):
            try:
                psycopg.connect(
                    host="127.0.0.1", port=port, user="postgres", connect_timeout=5
                ).close()
                break
            except psycopg.OperationalError:
                time.sleep(0.1)
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait()
        log.close()
