"""Evaluate a method on tasks: run the episodes that are left, and record each as it ends."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from atommem.envs.scoring.records import EvalResult, breakdowns, record_of
from atommem.episode import Episode
from atommem.errors import DataError
from atommem.eval.methods.baseline import Baseline, Method
from atommem.eval.output import EPISODES, SUMMARY, OutputFolder
from atommem.files import file_digest, write_json
from atommem.policy.server import ChatPolicy
from atommem.process import frozen_heap, run_jobs
from atommem.rollout import EpisodeRunner


async def evaluate(
    tasks: Sequence[Any],
    runner: Method,
    out: str | Path | None = None,
    *,
    num_generations: int = 1,
    settings: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> EvalResult:
    """Run `num_generations` episodes of every task; `tasks` have different ids.

    `out` is a folder of records, traces and summary: its finished episodes are not run again,
    failed ones are, and it must agree in `settings`, JSON values. None keeps everything in memory.
    Returns records in the order of the tasks; failed episodes are included, and in no score.
    """
    jobs = {(task.id, sample): task for task in tasks for sample in range(num_generations)}
    if len(jobs) < len(tasks) * num_generations:
        ids = [task.id for task in tasks]
        double = next(name for name in ids if ids.count(name) > 1)
        raise DataError(f"two tasks have the id {double!r}. Give each task its own.")
    with ExitStack() as stack:
        records, folder = {}, None
        if out is not None:
            manifest = make_manifest(tasks, runner, settings or {}, num_generations)
            folder = stack.enter_context(closing(OutputFolder(out, manifest)))
            records = {key: record for key, record in folder.finished.items() if not record.failed}
        pending = [(task, key[1]) for key, task in jobs.items() if key not in records]
        bar = tqdm(total=len(jobs), initial=len(records), unit="episode", disable=not progress)
        stack.enter_context(bar)
        failed: list[str] = []

        def on_episode(index: int, episode: Episode) -> None:
            task, _ = pending[index]
            description = runner.factory.describe(task)
            record = record_of(description, episode, runner.factory.diagnose(task, episode))
            records[record.key] = record
            if folder is not None:
                if isinstance(runner, EpisodeRunner):  # a baseline keeps its prompts itself
                    for step in episode.steps:
                        step.prompt = runner.agent.prompts.text(step.observation, step.view)
                folder.add(description, episode, record)
            episode.steps.clear()  # the trace has them; thousands of episodes fill the memory
            failed.extend([task.id] * record.failed)
            bar.set_postfix(failed=len(failed), refresh=False)
            bar.update()

        if folder is not None and pending:
            (folder.path / SUMMARY).unlink(missing_ok=True)  # new episodes outdate it
        with frozen_heap():
            await run_jobs(runner.run, pending, on_episode, runner.max_in_flight)
        result = EvalResult(tuple(records[key] for key in jobs))
        if folder is not None and not (folder.path / SUMMARY).is_file():
            summary = {**result.summary(), "breakdowns": breakdowns(result.records)}
            if services := runner.factory.usage():
                summary["services"] = services
            policy = (runner.setup if isinstance(runner, Baseline) else runner.agent).policy
            if isinstance(policy, ChatPolicy):
                summary |= policy.record()
            summary["run"] = folder.manifest
            summary["episodes_sha256"] = file_digest(folder.path / EPISODES)
            write_json(folder.path / SUMMARY, summary)
    return result


def make_manifest(
    tasks: Sequence[Any], runner: Method, settings: Mapping[str, Any], num_generations: int
) -> dict[str, Any]:
    """Return everything that scores depend on, as JSON values."""
    if isinstance(runner, Baseline):
        method = runner.settings()
    else:
        method = {
            "memory": asdict(runner.agent.memory),
            "templates_sha256": runner.agent.prompts.digest,
            **runner.agent.prompts.chat.record(),
            "sampling": asdict(runner.agent.sampling),
            "limits": asdict(runner.limits),
        }
    described = {"count": len(tasks), "sha256": tasks_digest(tasks)}
    return {**settings, "tasks": described, "num_generations": num_generations, **method}


def tasks_digest(tasks: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(repr(task).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()
