"""Writes of many callers: each a transaction, or on SQLite one fsync for all that wait while another is on its way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import sqlalchemy as sa

THREADS = 16
Write = Callable[[sa.Connection], None]


class EachCommit:
    """Every write is a transaction of its own, several at the same time.

    Args:
        engine: Whose transactions write.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="atommem-commit")

    def submit(self, write: Write) -> Future[None]:
        """Do something with a connection; when the future is done it is committed, or has raised and is undone."""
        return self._threads.submit(self._write, write)

    def _write(self, write: Write) -> None:
        with self._engine.begin() as connection:
            write(connection)


class GroupCommit:
    """One thread commits what has been brought meanwhile; where one of it fails, each is done by itself.

    Args:
        engine: Whose transactions write.
        lock: One writer has it at a time; others of this process that write take it as well.
    """

    def __init__(self, engine: sa.Engine, lock: threading.Lock) -> None:
        self._engine, self._lock = engine, lock
        self._guard = threading.Lock()
        self._waiting: list[tuple[Write, Future[None]]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="atommem-commit")

    def submit(self, write: Write) -> Future[None]:
        """As of `EachCommit`."""
        future: Future[None] = Future()
        with self._guard:
            self._waiting.append((write, future))
            if len(self._waiting) == 1:
                self._thread.submit(self._commit)
        return future

    def _commit(self) -> None:
        with self._lock:
            with self._guard:
                waiting, self._waiting = self._waiting, []
            batch = [(write, future) for write, future in waiting if future.set_running_or_notify_cancel()]
            try:
                self._write([write for write, _ in batch])
            except BaseException:  # none of them is there
                for write, future in batch:
                    try:
                        self._write([write])
                    except BaseException as error:
                        future.set_exception(error)
                    else:
                        future.set_result(None)
            else:
                for _, future in batch:
                    future.set_result(None)

    def _write(self, batch: list[Write]) -> None:
        with self._engine.begin() as connection:
            for write in batch:
                write(connection)
