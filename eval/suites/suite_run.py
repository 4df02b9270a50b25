"""Runs the cells of a suite: all checked before the first one starts, then side by side under one bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from atommem.envs.scoring.records import EpisodeRecord
from atommem.envs.task import Task
from atommem.errors import AtomMemError, BudgetSpentError
from atommem.eval.budget import Budget
from atommem.eval.output import SUMMARY, OutputFolder
from atommem.eval.runner import evaluate, make_manifest
from atommem.eval.suites.board import Board
from atommem.eval.suites.cells import Cell
from atommem.eval.workbench import Workbench


class SuiteRun:
    """One run of a suite.

    Args:
        cells: In the order in which they run; those that share policy and embedder follow one another.
        tasks: Of each column, by its key.
        budget: Shared by all cells.
        board: Shows how far they are.
    """

    def __init__(
        self, cells: Sequence[Cell], tasks: Mapping[str, Sequence[Task]], budget: Budget, board: Board
    ) -> None:
        self._cells = cells
        self._tasks = tasks
        self._budget = budget
        self._board = board
        self._bound = cells[0].configs[0].max_in_flight
        self._running: set[Cell] = set()
        self._changed = asyncio.Event()

    async def run(self, checked: Callable[[], None] = lambda: None) -> None:
        """Run what has not been run yet. What becomes of each cell stands in its `state`.

        Args:
            checked: Called before the first cell runs, when every cell knows how far earlier runs came.

        Raises:
            AtomMemError: A cell cannot run, and this is known before any has begun.
        """
        async with Workbench(asyncio.Semaphore(self._bound)) as session:
            for cell in self._cells:
                try:
                    await self._check(session, cell)
                except AtomMemError as error:
                    raise type(error)(f"{cell.name}: {error}") from error
            checked()
            with self._board:
                for _, group in groupby(self._cells, key=lambda cell: cell.shares):
                    async with asyncio.TaskGroup() as tasks:
                        for cell in group:
                            await self._room()
                            # It counts as running from here on, so that the next one waits for room beside it.
                            self._running.add(cell)
                            tasks.create_task(self._run(session, cell))

    async def _check(self, session: Workbench, cell: Cell) -> None:
        """Find out whether `cell` can run, and how far an earlier run came.

        Raises:
            AtomMemError: It cannot: a package or a model is missing, a server out of reach, or its folder holds
                another evaluation.
        """
        tasks = self._tasks[cell.column.key][: cell.configs[0].limit]
        method, settings = await session.open(cell.configs)
        manifest = make_manifest(tasks, method, cell.configs[0].samples_per_task, settings)
        with OutputFolder(cell.folder, manifest) as folder:
            cell.total = len(tasks) * cell.configs[0].samples_per_task
            for record in folder.finished.values():
                cell.take(record)
            self._budget.add_folder(folder.path, folder.used)

    async def _room(self) -> None:
        """Wait until the cells that run leave places for further episodes."""
        while sum(cell.left for cell in self._running) >= self._bound:
            self._changed.clear()
            await self._changed.wait()

    async def _run(self, session: Workbench, cell: Cell) -> None:
        try:
            if not (cell.left or cell.failed) and (cell.folder / SUMMARY).is_file():
                cell.end("done")
                return
            method, settings = await session.open(cell.configs)
            cell.begin()
            self._board.note(cell)

            def on_record(record: EpisodeRecord) -> None:
                cell.take(record)
                self._changed.set()
                self._board.tick()

            await evaluate(
                self._tasks[cell.column.key][: cell.configs[0].limit],
                method,
                cell.folder,
                samples_per_task=cell.configs[0].samples_per_task,
                settings=settings,
                progress=False,
                budget=self._budget,
                on_record=on_record,
            )
            cell.end("done")
        except BudgetSpentError:
            cell.end("stopped")
        except AtomMemError as error:
            # The other cells may still run: a policy may refuse what one method asks only.
            cell.end("impossible", str(error))
        finally:
            self._running.discard(cell)
            self._changed.set()
            self._board.note(cell)
