"""Evaluate a policy on tasks: run what has not been run yet, and record each episode as it ends."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from atommem.envs.scoring.breakdowns import breakdowns
from atommem.envs.scoring.records import EpisodeRecord, EvalResult, main_metric, record_of
from atommem.episode import Episode
from atommem.errors import BudgetSpentError, ConfigError, DataError
from atommem.eval.budget import Budget
from atommem.eval.methods.baseline import Baseline, Method
from atommem.eval.output import OutputFolder, usage_of
from atommem.garbage import frozen_heap


async def evaluate(
    tasks: Sequence[Any],
    runner: Method,
    out: str | Path | None = None,
    *,
    samples_per_task: int = 1,
    settings: Mapping[str, Any] | None = None,
    progress: bool = True,
    budget: Budget | None = None,
    on_record: Callable[[EpisodeRecord], None] | None = None,
) -> EvalResult:
    """Run `samples_per_task` episodes of every task.

    Args:
        tasks: Each with an id of its own.
        runner: The method: an `EpisodeRunner`, or a baseline.
        out: Folder for records, traces and summary. Episodes that it holds already are not run again, failed
            ones are. None keeps everything in memory.
        samples_per_task: Episodes of each task.
        settings: What else must be the same when a folder is continued (policy, embedder, environment), as JSON
            values.
        progress: Show a progress bar on standard error.
        budget: What may be spent; several evaluations may share one. What `out` holds already counts as spent.
        on_record: Called with every record: at first with those that `out` holds of episodes that need not run
            again, then with each episode's as it ends and is stored.

    Returns:
        The records in the order of the tasks. Failed episodes are among them, and in no score.

    Raises:
        ConfigError: `out` holds an evaluation with other settings or tasks.
        DataError: Two tasks have the same id, or the records in `out` are damaged.
        PolicyError: The policy refused a request for good.
        BudgetSpentError: The budget was spent before every episode had run.
    """
    if samples_per_task < 1:
        raise ConfigError(f"samples_per_task is {samples_per_task}: give at least 1.")
    _check_ids(tasks)
    jobs = [(task, sample) for task in tasks for sample in range(samples_per_task)]
    with ExitStack() as stack:
        folder = None
        records: dict[tuple[str, int], EpisodeRecord] = {}
        if out is not None:
            manifest = make_manifest(tasks, runner, samples_per_task, settings or {})
            folder = stack.enter_context(OutputFolder(out, manifest))
            records = {key: record for key, record in folder.finished.items() if not record.failed}
            if budget is not None:
                budget.add_folder(folder.path, folder.used)
        resumed = len(records)
        pending = [(task, sample) for task, sample in jobs if (task.id, sample) not in records]
        if folder is not None and pending:
            folder.drop_summary()
        bar = stack.enter_context(_Bar(len(jobs), records.values(), show=progress))
        if on_record is not None:
            for record in records.values():
                on_record(record)

        def on_episode(index: int, episode: Episode) -> None:
            task = pending[index][0]
            description = runner.environments.describe(task)
            record = record_of(description, episode, runner.environments.diagnose(task, episode))
            records[(task.id, episode.sample)] = record
            if folder is not None:
                folder.add(description, episode, record)
            # The trace holds the steps; in memory those of thousands of episodes would add up to gigabytes.
            episode.steps.clear()
            bar.add(record)
            if budget is not None:
                budget.add(usage_of(record))
            if on_record is not None:
                on_record(record)

        with frozen_heap():
            await runner.run_all(
                pending, on_episode, None if budget is None else lambda: budget.spent
            )
        left = len(jobs) - len(records)
        if left:
            raise BudgetSpentError(
                f"the budget is spent: {budget}. {left} of {len(jobs)} episodes have not run."
            )
        result = EvalResult(tuple(records[(task.id, sample)] for task, sample in jobs), resumed)
        if folder is not None:
            services = runner.environments.usage() if pending else folder.services()
            parts = {"breakdowns": breakdowns(result.records)} | (
                {"services": services} if services else {}
            )
            folder.write_summary({**result.summary(), **parts, "run": folder.manifest})
    return result


def make_manifest(
    tasks: Sequence[Any], runner: Method, samples_per_task: int, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything that a score depends on and that can be written down, as JSON values."""
    return {
        **settings,
        "tasks": {"count": len(tasks), "sha256": tasks_digest(tasks)},
        "samples_per_task": samples_per_task,
        **_method_settings(runner),
    }


def _method_settings(method: Method) -> dict[str, Any]:
    if isinstance(method, Baseline):
        return method.settings()
    return {
        "memory": asdict(method.agent.memory),
        "templates_sha256": method.agent.prompts.digest,
        "sampling": asdict(method.agent.sampling),
        "limits": asdict(method.limits),
    }


def tasks_digest(tasks: Sequence[Any]) -> str:
    """SHA-256 of the tasks, by all that their representations say."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(repr(task).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


class _Bar(tqdm):
    """Progress: episodes done, failed, the main score so far, time left.

    Args:
        total: Number of episodes.
        done: What earlier runs ended: they took no time in this one, and do not enter the rate.
        show: Whether it is shown.
    """

    def __init__(self, total: int, done: Collection[EpisodeRecord], *, show: bool) -> None:
        super().__init__(
            total=total,
            initial=len(done),
            desc="eval",
            unit="episode",
            disable=not show,
            dynamic_ncols=True,
        )
        self._metric = "em"
        self._scores: list[float] = []
        self._failed = 0
        for record in done:
            self._count(record)

    def add(self, record: EpisodeRecord) -> None:
        self._count(record)
        mean = sum(self._scores) / len(self._scores) if self._scores else float("nan")
        self.set_postfix({"failed": self._failed, self._metric: f"{mean:.3f}"}, refresh=False)
        self.update()

    def _count(self, record: EpisodeRecord) -> None:
        self._failed += record.failed
        if not (record.failed or record.overflowed):
            self._metric = main_metric([record])
            self._scores += record.scores(self._metric)


def _check_ids(tasks: Sequence[Any]) -> None:
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise DataError(
                f"two tasks have the id {task.id!r}: ids tell episodes apart, so give each its own."
            )
        seen.add(task.id)
