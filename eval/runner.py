"""Evaluate a method on tasks: run the episodes that are left, and record each as it ends.

The output folder can be killed at any time and continued:

==================  ============================================================================
``run.json``        the settings and tasks; a rerun with others is refused
``episodes.jsonl``  a line per scored or failed episode; a rerun repeats the failed ones
``traces/``         a trace per episode
``summary.json``    written when every episode has finished
==================  ============================================================================
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from atommem.environment import TaskDescription
from atommem.envs.scoring.records import EpisodeRecord, EvalResult, breakdowns, record_of
from atommem.episode import Episode
from atommem.errors import ConfigError, DataError
from atommem.eval.methods.baseline import Baseline, Method
from atommem.files import file_digest, locked, write_json
from atommem.policy.server import ChatPolicy
from atommem.process import frozen_heap, run_jobs
from atommem.rollout import EpisodeRunner
from atommem.trace import write_trace

MANIFEST = "run.json"
EPISODES = "episodes.jsonl"
SUMMARY = "summary.json"
TRACES = "traces"


class OutputFolder:
    """Loads finished records and stores new ones; holds a lock until it is closed.

    `finished` has the latest record of each episode. ConfigError if the folder has another
    evaluation, or one runs in it; DataError if ``episodes.jsonl`` is damaged before its last line.
    """

    def __init__(self, path: str | Path, manifest: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.manifest: dict[str, Any] = json.loads(json.dumps(manifest))  # as it is read back
        file = self.path / EPISODES
        with ExitStack() as stack:  # after an error it closes the file and frees the lock
            stack.enter_context(locked("output_dir", self.path))
            self._file = stack.enter_context(file.open("a+b"))
            self._file.seek(0)
            content = self._file.read()
            self._check_manifest(empty=not content)
            self._file.truncate(content.rfind(b"\n") + 1)  # a line that a kill cut off
            self.finished = parse_records(content, file)
            self.close = stack.pop_all().close

    def add(self, task: TaskDescription, episode: Episode, record: EpisodeRecord) -> None:
        """Store an episode durably: first its trace, then its line."""
        write_trace(trace_path(self.path, record), episode, asdict(task), self.manifest)
        self._file.write(json.dumps(asdict(record)).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _check_manifest(self, empty: bool) -> None:
        path = self.path / MANIFEST
        if empty:  # a folder without episodes belongs to nobody
            if (self.path / SUMMARY).exists():
                place = f"output_dir={self.path}: its {SUMMARY}"
                raise ConfigError(f"{place} is not of an evaluation and would be lost. Rename it.")
            write_json(path, self.manifest)
            return
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: {error}. Give another output folder.") from error
        if found := list(differences(stored, self.manifest)):
            texts = (f"{name} is {one!r} there and {two!r} now" for name, one, two in found)
            raise ConfigError(
                f"{self.path} has another evaluation: {'; '.join(texts)}. Give another "
                "output folder, or the folder's settings and data."
            )


def parse_records(content: bytes, path: Path) -> dict[tuple[str, int], EpisodeRecord]:
    """Parse lines into the latest record of each episode; a torn last line is left out."""
    records = {}
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            record = EpisodeRecord.from_json(json.loads(line))
        except (ValueError, DataError) as error:
            raise DataError(
                f"{path}, line {number}: {error}. Remove the line to run its episode again."
            ) from error
        records[record.key] = record
    return records


def trace_path(folder: Path, record: EpisodeRecord) -> Path:
    return folder / TRACES / f"{file_stem(record.task_id)}.{record.sample}.jsonl"


def file_stem(task_id: str) -> str:
    """Return a file name for `task_id`: itself, or a readable form with a digest."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", task_id)[:80]
    if safe == task_id:
        return safe
    digest = hashlib.blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
    return f"{safe}-{digest}"


def differences(stored: Any, given: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield what differs: the name, such as "memory.layout", and both values."""
    if isinstance(stored, dict) and isinstance(given, dict):
        for key in sorted(stored.keys() | given.keys()):
            place = f"{name}.{key}" if name else key
            yield from differences(stored.get(key, "not set"), given.get(key, "not set"), place)
    elif stored != given:
        yield name, stored, given


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
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(repr(task).encode("utf-8", "surrogatepass") + b"\n")
    described = {"count": len(tasks), "sha256": digest.hexdigest()}
    return {**settings, "tasks": described, "num_generations": num_generations, **method}
