"""Writes of many callers: each a transaction, or on SQLite one fsync for all that wait while another is on its way."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import sqlalchemy as sa

THREADS = 16
_Result = TypeVar("_Result")
_Write = tuple[Callable[[sa.Connection], Any], "Future[Any]"]


class GroupCommit:
    """Threads that write what they are brought.

    SQLite has one writer: one thread commits what has been brought meanwhile, and where one of it fails, does each by
    itself. Elsewhere every write is a transaction of its own, several at the same time.

    Args:
        engine: Whose transactions write.
    """

    def __init__(self, engine: sa.Engine) -> None:
        threads, self._together = (
            (1, sys.maxsize) if engine.dialect.name == "sqlite" else (THREADS, 1)
        )
        self._engine = engine.execution_options(writes=True)
        self._guard = threading.Lock()
        self._waiting: list[_Write] = []
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="atommem-commit")

    def submit(self, write: Callable[[sa.Connection], _Result]) -> Future[_Result]:
        """Do something with a connection; when the future is done it is committed, or has raised and is undone."""
        future: Future[_Result] = Future()
        with self._guard:
            self._waiting.append((write, future))
        self._threads.submit(self._take)
        return future

    def _take(self) -> None:
        with self._guard:
            taken, self._waiting = self._waiting[: self._together], self._waiting[self._together :]
        if taken:  # nobody else has
            self._commit(
                [
                    (write, future)
                    for write, future in taken
                    if future.set_running_or_notify_cancel()
                ]
            )

    def _commit(self, batch: Sequence[_Write]) -> None:
        try:
            with self._engine.begin() as connection:
                done = [write(connection) for write, _ in batch]
        except BaseException as error:  # none of them is there
            if len(batch) == 1:
                batch[0][1].set_exception(error)
            else:
                for one in batch:
                    self._commit([one])
        else:
            for (_, future), result in zip(batch, done, strict=True):
                future.set_result(result)
