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


async def run_cells(
    cells: Sequence[Cell],
    tasks: Mapping[str, Sequence[Task]],
    budget: Budget,
    board: Board,
    checked: Callable[[], None] = lambda: None,
) -> None:
    """Run what has not been run yet. What becomes of each cell stands in its `state`.

    Args:
        cells: In the order in which they run; those that share policy and embedder follow one another.
        tasks: Of each column, by its key.
        budget: Shared by all cells.
        board: Shows how far they are.
        checked: Called before the first cell runs, when every cell knows how far earlier runs came.

    Raises:
        AtomMemError: A cell cannot run (a package or a model is missing, a server out of reach, its folder holds
            another evaluation), and this is known before any has begun.
    """
    bound = cells[0].evaluation.policy.max_in_flight
    running: set[Cell] = set()
    changed = asyncio.Event()

    def tasks_of(cell: Cell) -> Sequence[Task]:
        return tasks[cell.column.key][: cell.evaluation.config.limit]

    async def check(cell: Cell) -> None:
        """Find out whether `cell` can run, and how far an earlier run came."""
        method, settings = await session.open(cell.evaluation)
        samples = cell.evaluation.config.samples_per_task
        with OutputFolder(
            cell.folder, make_manifest(tasks_of(cell), method, samples, settings)
        ) as folder:
            cell.total = len(tasks_of(cell)) * samples
            for record in folder.finished.values():
                cell.take(record)
            budget.add_folder(folder.path, folder.used)

    async def run(cell: Cell) -> None:
        def on_record(record: EpisodeRecord) -> None:
            cell.take(record)
            changed.set()
            board.tick()

        try:
            if not (cell.left or cell.failed) and (cell.folder / SUMMARY).is_file():
                cell.end("done")
                return
            method, settings = await session.open(cell.evaluation)
            cell.begin()
            board.note(cell)
            await evaluate(
                tasks_of(cell),
                method,
                cell.folder,
                samples_per_task=cell.evaluation.config.samples_per_task,
                settings=settings,
                progress=False,
                budget=budget,
                on_record=on_record,
            )
            cell.end("done")
        except BudgetSpentError:
            cell.end("stopped")
        except AtomMemError as error:
            # The other cells may still run: a policy may refuse what one method asks only.
            cell.end("impossible", str(error))
        finally:
            running.discard(cell)
            changed.set()
            board.note(cell)

    async with Workbench(asyncio.Semaphore(bound)) as session:
        for cell in cells:
            try:
                await check(cell)
            except AtomMemError as error:
                raise type(error)(f"{cell.name}: {error}") from error
        checked()
        with board:
            for _, group in groupby(cells, key=lambda cell: cell.shares):
                async with asyncio.TaskGroup() as group_tasks:
                    for cell in group:
                        while (
                            sum(other.left for other in running) >= bound
                        ):  # until they leave places for others
                            changed.clear()
                            await changed.wait()
                        # It counts as running from here on, so that the next one waits for room beside it.
                        running.add(cell)
                        group_tasks.create_task(run(cell))
