"""Evaluate a method on tasks: run the episodes that are left, and record each as it ends."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from atommem.envs.scoring.records import EpisodeRecord, EvalResult, breakdowns, record_of
from atommem.episode import Episode
from atommem.errors import BudgetSpentError, DataError
from atommem.eval.methods.baseline import Baseline, Method
from atommem.eval.output import SUMMARY, OutputFolder
from atommem.files import write_json
from atommem.process import frozen_heap


@dataclass
class Budget:
    """A limit on the policy's tokens, which several evaluations may share.

    Prompts and completions of every answered call count, including those of failed episodes; calls
    of judges and embedders do not. A spent budget starts no episode; those in flight end.
    """

    tokens: int | None = None
    used: int = 0
    _folders: set[Path] = field(default_factory=set, repr=False)

    @property
    def spent(self) -> bool:
        """Whether no episode may start any more."""
        return self.tokens is not None and self.used >= self.tokens

    def add_folder(self, folder: OutputFolder) -> None:
        """Count what earlier runs in a folder used, once for each folder."""
        path = folder.path.resolve()
        if path not in self._folders:
            self._folders.add(path)
            self.used += folder.used

    def __str__(self) -> str:
        return f"{self.used:,} of {self.tokens or 0:,} tokens"


async def evaluate(
    tasks: Sequence[Any],
    runner: Method,
    out: str | Path | None = None,
    *,
    samples_per_task: int = 1,
    settings: Mapping[str, Any] | None = None,
    progress: bool = True,
    budget: Budget | None = None,
    on_record: Callable[[EpisodeRecord], None] = lambda record: None,
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
    ids = [task.id for task in tasks]
    if len({*ids}) < len(ids):
        double = next(name for name in ids if ids.count(name) > 1)
        raise DataError(f"two tasks have the id {double!r}. Give each task its own.")
    jobs = [(task, sample) for task in tasks for sample in range(samples_per_task)]
    budget = budget or Budget()
    records: dict[tuple[str, int], EpisodeRecord] = {}
    with ExitStack() as stack:
        folder = None
        if out is not None:
            manifest = make_manifest(tasks, runner, samples_per_task, settings or {})
            folder = stack.enter_context(OutputFolder(out, manifest))
            records = {key: record for key, record in folder.finished.items() if not record.failed}
            budget.add_folder(folder)
        resumed = len(records)
        pending = [(task, sample) for task, sample in jobs if (task.id, sample) not in records]
        bar = stack.enter_context(
            tqdm(total=len(jobs), initial=resumed, unit="episode", disable=not progress)
        )
        for record in records.values():
            on_record(record)
        failed = 0

        def on_episode(index: int, episode: Episode) -> None:
            nonlocal failed
            task = pending[index][0]
            description = runner.factory.describe(task)
            record = record_of(description, episode, runner.factory.diagnose(task, episode))
            records[record.key] = record
            if folder is not None:
                folder.add(description, episode, record)
            episode.steps.clear()  # the trace has them; thousands of episodes fill the memory
            bar.update()
            failed += record.failed
            bar.set_postfix(failed=failed, refresh=False)
            budget.used += record.prompt_tokens + record.completion_tokens
            on_record(record)

        if folder is not None and pending:
            (folder.path / SUMMARY).unlink(missing_ok=True)  # new episodes outdate it
        with frozen_heap():
            await runner.run_all(pending, on_episode, lambda: budget.spent)
        if left := len(jobs) - len(records):
            raise BudgetSpentError(
                f"the budget is spent: {budget}. {left} of {len(jobs)} episodes have not run."
            )
        result = EvalResult(tuple(records[task.id, sample] for task, sample in jobs), resumed)
        if folder is not None and not (folder.path / SUMMARY).is_file():
            summary = {**result.summary(), "breakdowns": breakdowns(result.records)}
            if services := runner.factory.usage():
                summary["services"] = services
            write_json(folder.path / SUMMARY, {**summary, "run": folder.manifest})
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
