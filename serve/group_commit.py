"""Writes of several threads as one transaction of SQLite: one fsync for all that wait while another is on its way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa


@dataclass
class _Write:
    work: Callable[[sa.Connection], None]
    done: bool = False
    error: BaseException | None = None


class GroupCommit:
    """Whoever gets the lock commits what all have brought; where one of them fails, each is done by itself.

    Args:
        engine: Whose transactions write.
        lock: One writer has it at a time; others of this process that write take it as well.
    """

    def __init__(self, engine: sa.Engine, lock: threading.Lock) -> None:
        self._engine, self._lock = engine, lock
        self._guard = threading.Lock()
        self._waiting: list[_Write] = []

    def run(self, work: Callable[[sa.Connection], None]) -> None:
        """Do `work` with a connection; when this returns it is committed. What it raises is raised, and undone."""
        write = _Write(work)
        with self._guard:
            self._waiting.append(write)
        with self._lock:
            if not write.done:
                with self._guard:
                    batch, self._waiting = self._waiting, []
                self._commit(batch)
        if write.error is not None:
            raise write.error

    def _commit(self, batch: list[_Write]) -> None:
        try:
            with self._engine.begin() as connection:
                for write in batch:
                    write.work(connection)
        except BaseException as error:  # none of them is there
            if len(batch) > 1:
                for write in batch:
                    self._commit([write])
            else:
                batch[0].error = error
        for write in batch:
            write.done = True
