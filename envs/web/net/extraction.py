"""Reads HTML, PDF and robots.txt in processes that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import LifoQueue
from typing import Any

from atommem.envs.web.tools import PageError
from atommem.errors import OutageError

_SCRIPT = Path(__file__).with_name("extract_worker.py")
_KEPT_VARIABLES = ("PATH", "PYTHONPATH", "LANG", "LC_ALL")
_LONGEST_ANSWER = 16_000_000


class Extraction:
    """A few worker processes, each for one document at a time.

    Args:
        workers: How many.
        seconds: For a document; then its worker is killed.
        megabytes: Of address space for a worker.
    """

    def __init__(self, workers: int = 2, seconds: float = 10.0, megabytes: int = 1024) -> None:
        self._seconds = seconds
        self._command = [sys.executable, "-P", str(_SCRIPT), str(megabytes), str(2 * seconds)]
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="atommem-extract")
        self._idle: LifoQueue[subprocess.Popen[bytes] | None] = LifoQueue()
        for _ in range(workers):
            self._idle.put(None)

    async def read(self, kind: str, body: bytes, **details: Any) -> dict[str, Any]:
        """What the worker's ``read_KIND`` makes of `body`.

        Raises:
            PageError: It cannot be read, or not in the time and memory that it has.
            OutageError: This machine can start no process.
        """
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(
            self._threads, self._ask, {"kind": kind, **details}, body
        )
        if "error" in answer:
            raise PageError(f"this {kind} cannot be read ({answer['error']}).")
        return answer

    def close(self) -> None:
        """End the workers; what is being read now still ends."""
        self._threads.shutdown()
        while not self._idle.empty():
            worker = self._idle.get()
            if worker is not None:
                _end(worker)

    def _ask(self, request: dict[str, Any], body: bytes) -> dict[str, Any]:
        idle = self._idle.get()
        try:
            worker = self._start() if idle is None or idle.poll() is not None else idle
        except OSError as error:
            self._idle.put(None)
            raise OutageError(
                f"no process to read pages in can be started here: {error}."
            ) from error
        killed = threading.Event()

        def kill() -> None:
            killed.set()
            worker.kill()

        timer = threading.Timer(self._seconds, kill)
        timer.start()
        answer = None
        try:
            with contextlib.suppress(OSError, ValueError):  # it has died, or writes nonsense
                answer = _exchange(worker, json.dumps(request).encode(), body)
        finally:
            timer.cancel()
            ended = answer is None or killed.is_set()
            if ended:
                _end(worker)
            self._idle.put(None if ended else worker)
        if answer is not None:
            return answer
        why = (
            f"it takes longer than {self._seconds:g} seconds"
            if killed.is_set()
            else "it takes too much memory"
        )
        return {"error": why}

    def _start(self) -> subprocess.Popen[bytes]:
        kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        pipe = subprocess.PIPE
        # In a group of its own: Ctrl-C is ours, and a page whose worker it ended would count as unreadable.
        return subprocess.Popen(
            self._command,
            env=kept,
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )


def _exchange(
    worker: subprocess.Popen[bytes], request: bytes, body: bytes
) -> dict[str, Any] | None:
    """One request and its answer; None if the worker has ended."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    for part in (request, body):
        worker.stdin.write(len(part).to_bytes(4) + part)
    worker.stdin.flush()
    length = int.from_bytes(worker.stdout.read(4))
    if not 0 < length <= _LONGEST_ANSWER:
        return None
    written = worker.stdout.read(length)
    answer = json.loads(written) if len(written) == length else None
    return answer if isinstance(answer, dict) else None


def _end(worker: subprocess.Popen[bytes]) -> None:
    worker.kill()
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
