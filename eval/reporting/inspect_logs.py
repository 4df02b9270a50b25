"""Evaluations as logs of Inspect: ``inspect view --log-dir FOLDER`` shows their episodes.

A log is an evaluation, a sample an episode: its id is the task's, its epoch the sample. Messages
are the steps of the trace. Scores of samples are the episode's; those of the log are ours, over
questions, with their intervals. The format is JSON, so Inspect need not be installed.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from atommem.envs.scoring.records import EpisodeRecord, summarize
from atommem.episode import Step
from atommem.eval.output import EPISODES, MANIFEST, file_stem, trace_path
from atommem.eval.reporting.results import Evaluation
from atommem.files import write_text
from atommem.text_safety import clean
from atommem.trace import read_trace

_METRICS = {"mean": "mean", "ci_low": "low", "ci_high": "high", "questions": "n"}


def write_inspect_logs(evaluations: Sequence[Evaluation], out: Path) -> list[Path]:
    """Write a log for each evaluation into `out`; raises TraceError if a trace is damaged."""
    paths = []
    for item in evaluations:
        log = inspect_log(item)
        stem = file_stem(f"{log['eval']['task']}_{log['eval']['task_id']}".replace("/", "-"))
        # Inspect recognises logs by the time at the beginning of their names.
        paths.append(out / f"{log['eval']['created'].replace(':', '-')}_{stem}.json")
        write_text(paths[-1], clean(json.dumps(log, ensure_ascii=False, indent=1)))
    return paths


def inspect_log(item: Evaluation) -> dict[str, Any]:
    """Return one evaluation as the values of an ``EvalLog``."""
    summary, done = summarize(item.records), len(item.records)
    policy = item.manifest.get("policy", {})
    model = str(policy.get("model") or policy.get("path") or "unknown")
    start, end = _modified(item.folder / MANIFEST), _modified(item.folder / EPISODES)
    name = f"{item.row}/{item.column}/{item.seed}/{item.tasks_digest}"
    identifier = hashlib.sha256(name.encode()).hexdigest()[:22]
    scores = [
        {
            "name": metric,
            "scorer": metric,
            "scored_samples": done - summary["failed"] - summary["overflow"],
            "metrics": {key: {"name": key, "value": score[part]} for key, part in _METRICS.items()},
        }
        for metric, score in summary["metrics"].items()
    ]
    return {
        "version": 2,
        "status": "success" if done >= item.planned else "started",
        "eval": {
            **dict.fromkeys(("eval_id", "run_id", "task_id"), identifier),
            "created": start,
            "task": f"{item.row} on {item.column}",
            "dataset": {"name": item.dataset},
            "model": model,
            "config": {"epochs": int(item.manifest.get("num_generations", 1))},
            "metadata": {"manifest": item.manifest, "seed": item.seed},
        },
        "results": {"total_samples": item.planned, "completed_samples": done, "scores": scores},
        "stats": {"started_at": start, "completed_at": end},
        "samples": [_sample(item, record, model) for record in item.records],
    }


def _sample(item: Evaluation, record: EpisodeRecord, model: str) -> dict[str, Any]:
    path = trace_path(item.folder, record)
    steps = read_trace(path).episode.steps if path.is_file() else []
    answer = "\n".join(question.answer or "(none)" for question in record.questions)
    choice = {"message": {"role": "assistant", "content": answer}, "stop_reason": "stop"}
    scores = {} if record.overflowed or record.failed else record.metrics
    sample: dict[str, Any] = {
        "id": record.task_id,
        "epoch": record.sample + 1,
        "input": "\n".join(question.question for question in record.questions) or record.task_id,
        "target": [gold for question in record.questions for gold in question.golds[:1]],
        "messages": [message for step in steps for message in _messages(step, model)],
        "output": {"model": model, "choices": [choice]},
        "scores": {name: {"value": value, "answer": answer} for name, value in scores.items()},
        "metadata": {"source": record.source, "stop_reason": record.stop_reason},
        "total_time": record.seconds,
    }
    if record.failed:
        text = record.error or "unknown"
        sample["error"] = {"message": text, "traceback": text, "traceback_ansi": text}
    return sample


def _messages(step: Step, model: str) -> Iterator[dict[str, Any]]:
    yield {"role": "user", "content": step.prompt or "", "source": "input"}
    operations = {"operations": [str(operation.kind) for operation in step.operations]}
    reply = {"role": "assistant", "content": step.text, "source": "generate", "model": model}
    yield {**reply, "metadata": operations}


def _modified(path: Path) -> str:
    return datetime.fromtimestamp(int(path.stat().st_mtime), UTC).isoformat()
