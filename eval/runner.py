"""Evaluate a method on tasks: run the episodes that are left, and record each as it ends."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from atommem.envs.scoring.records import EpisodeRecord, EvalResult, breakdowns, record_of
from atommem.episode import Episode
from atommem.errors import BudgetSpentError, ConfigError, DataError
from atommem.eval.budget import Budget
from atommem.eval.methods.baseline import Baseline, Method
from atommem.eval.output import OutputFolder, usage_of
from atommem.process import frozen_heap


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
        tasks: With different ids.
        runner: An `EpisodeRunner` or a baseline.
        out: Folder of records, traces and summary; its finished episodes are not run again, failed
            ones are. None keeps everything in memory.
        settings: Further JSON values that must agree when a folder is continued.
        budget: Limit on spending, which includes what `out` already holds. May be shared.
        on_record: Called with each finished record, those in `out` first.

    Returns:
        The records in the order of the tasks; failed episodes are included, and in no score.

    Raises:
        ConfigError: `out` has an evaluation with other settings or tasks.
        DataError: Two tasks have the same id, or records in `out` are damaged.
        PolicyError: The policy refused a request.
        BudgetSpentError: The budget was spent before every episode had run.
    """
    if samples_per_task < 1:
        raise ConfigError(f"samples_per_task={samples_per_task}: must be at least 1.")
    ids = [task.id for task in tasks]
    if len({*ids}) < len(ids):
        double = next(name for name in ids if ids.count(name) > 1)
        raise DataError(f"two tasks have the id {double!r}. Give each task its own.")
    jobs = [(task, sample) for task in tasks for sample in range(samples_per_task)]
    records: dict[tuple[str, int], EpisodeRecord] = {}
    with ExitStack() as stack:
        folder = None
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
        bar = stack.enter_context(
            tqdm(total=len(jobs), initial=resumed, unit="episode", disable=not progress)
        )
        for record in records.values() if on_record is not None else ():
            on_record(record)  # type: ignore[misc]

        def on_episode(index: int, episode: Episode) -> None:
            task = pending[index][0]
            description = runner.environments.describe(task)
            record = record_of(description, episode, runner.environments.diagnose(task, episode))
            records[(task.id, episode.sample)] = record
            if folder is not None:
                folder.add(description, episode, record)
            episode.steps.clear()  # the trace has them; thousands of episodes fill the memory
            bar.update()
            bar.set_postfix(failed=sum(each.failed for each in records.values()), refresh=False)
            if budget is not None:
                budget.add(usage_of(record))
            if on_record is not None:
                on_record(record)

        with frozen_heap():
            stop = None if budget is None else lambda: budget.spent
            await runner.run_all(pending, on_episode, stop)
        if left := len(jobs) - len(records):
            raise BudgetSpentError(
                f"the budget is spent: {budget}. {left} of {len(jobs)} episodes have not run."
            )
        result = EvalResult(tuple(records[(task.id, sample)] for task, sample in jobs), resumed)
        if folder is not None:
            summary = {**result.summary(), "breakdowns": breakdowns(result.records)}
            if services := runner.environments.usage() if pending else folder.services():
                summary["services"] = services
            folder.write_summary({**summary, "run": folder.manifest})
    return result


def make_manifest(
    tasks: Sequence[Any], runner: Method, samples_per_task: int, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return everything that scores depend on, as JSON values."""
    if isinstance(runner, Baseline):
        method = runner.settings()
    else:
        method = {
            "memory": asdict(runner.agent.memory),
            "templates_sha256": runner.agent.prompts.digest,
            "sampling": asdict(runner.agent.sampling),
            "limits": asdict(runner.limits),
        }
    return {
        **settings,
        "tasks": {"count": len(tasks), "sha256": tasks_digest(tasks)},
        "samples_per_task": samples_per_task,
        **method,
    }


def tasks_digest(tasks: Sequence[Any]) -> str:
    """Return the SHA-256 of the tasks' representations."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(repr(task).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()
