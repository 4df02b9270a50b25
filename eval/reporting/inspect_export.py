"""Evaluations as logs of Inspect (inspect_ai): ``inspect view --log-dir FOLDER`` opens them.

A log is an evaluation, a sample an episode: its id is the task's, its epoch the sample. Messages
are the steps of the trace. Scores of samples are the episode's; those of the log are ours, over
questions, with their intervals. The format is JSON, so nothing of Inspect needs to be installed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from atommem.envs.scoring.records import EpisodeRecord, summarize
from atommem.envs.task_files import write_text
from atommem.episode import Episode, Step
from atommem.eval.output import EPISODES, MANIFEST, file_stem
from atommem.eval.reporting.evaluations import Evaluation
from atommem.text_safety import clean
from atommem.trace import read_trace

VERSION = 2
"""Version of Inspect's log format."""
_METRICS = {"mean": "mean", "ci_low": "low", "ci_high": "high", "questions": "n"}


def write_inspect_logs(evaluations: Sequence[Evaluation], out: Path) -> list[Path]:
    """Write a log for each evaluation into `out`.

    Names begin with the start time, by which Inspect recognises logs. A missing trace leaves a
    sample without messages.

    Raises:
        TraceError: A trace is damaged.
    """
    paths = []
    for item in evaluations:
        log = inspect_log(item)
        stem = file_stem(f"{log['eval']['task']}_{log['eval']['task_id']}".replace("/", "-"))
        path = out / f"{log['eval']['created'].replace(':', '-')}_{stem}.json"
        write_text(path, clean(json.dumps(log, ensure_ascii=False, indent=1)))
        paths.append(path)
    return paths


def inspect_log(item: Evaluation) -> dict[str, Any]:
    """Return one evaluation as the values of an ``EvalLog``."""
    summary = summarize(item.records)
    model = _model_name(item.manifest)
    start, end = _modified(item.folder / MANIFEST), _modified(item.folder / EPISODES)
    name = f"{item.row}/{item.column}/{item.seed}/{item.tasks_digest}"
    identifier = hashlib.sha256(name.encode()).hexdigest()[:22]
    complete = item.planned is None or len(item.records) >= item.planned
    scores = [
        {
            "name": metric,
            "scorer": metric,
            "scored_samples": len(item.records) - summary["failed"] - summary["overflow"],
            "metrics": {key: {"name": key, "value": score[part]} for key, part in _METRICS.items()},
        }
        for metric, score in summary["metrics"].items()
    ]
    return {
        "version": VERSION,
        "status": "success" if complete else "started",
        "eval": {
            **dict.fromkeys(("eval_id", "run_id", "task_id"), identifier),
            "created": start,
            "task": f"{item.row} on {item.column}",
            "dataset": {
                "name": item.dataset,
                "samples": len({record.task_id for record in item.records}),
            },
            "model": model,
            "config": {"epochs": 1 + max((record.sample for record in item.records), default=0)},
            "metadata": {"manifest": item.manifest, "seed": item.seed, "setting": item.setting},
        },
        "plan": {"name": "atommem", "steps": [{"solver": item.method, "params": {}}], "config": {}},
        "results": {
            "total_samples": item.planned or len(item.records),
            "completed_samples": len(item.records),
            "scores": scores,
        },
        "stats": {
            "started_at": start,
            "completed_at": end,
            "model_usage": {model: _usage(item.records)},
        },
        "samples": [_sample(item, record, model) for record in item.records],
    }


def _modified(path: Path) -> str:
    return datetime.fromtimestamp(int(path.stat().st_mtime), UTC).isoformat()


def _model_name(manifest: Mapping[str, Any]) -> str:
    policy = manifest.get("policy", manifest.get("model", "unknown"))
    if isinstance(policy, Mapping):
        policy = policy.get("model") or policy.get("name") or "policy"
    return str(policy or "unknown")


def _sample(item: Evaluation, record: EpisodeRecord, model: str) -> dict[str, Any]:
    path = item.trace(record)
    messages = list(_messages(read_trace(path).episode, model)) if path.is_file() else []
    answers = [question.answer for question in record.questions]
    answer = {"role": "assistant", "content": "\n".join(text or "" for text in answers)}
    answer_text = "\n".join(text or "(none)" for text in answers)
    scores = {} if record.overflowed or record.failed else record.metrics
    key = f"{record.task_id}/{record.sample}".encode("utf-8", "replace")
    sample: dict[str, Any] = {
        "id": record.task_id,
        "epoch": record.sample + 1,
        "input": "\n".join(question.question for question in record.questions) or record.task_id,
        "target": [gold for question in record.questions for gold in question.golds[:1]],
        "messages": messages,
        "output": {"model": model, "choices": [{"message": answer, "stop_reason": "stop"}]},
        "scores": {name: {"value": value, "answer": answer_text} for name, value in scores.items()},
        "metadata": {
            "source": record.source,
            "stop_reason": record.stop_reason,
            "questions": [question.metrics | question.attributes for question in record.questions],
        },
        "model_usage": {model: _usage([record])},
        "total_time": record.seconds,
        "uuid": hashlib.sha256(key).hexdigest()[:22],
    }
    if record.failed:
        text = record.error or "unknown"
        sample["error"] = {"message": text, "traceback": text, "traceback_ansi": text}
    return sample


def _messages(episode: Episode, model: str) -> Iterator[dict[str, Any]]:
    for step in episode.steps:
        yield {"role": "user", "content": _observation_text(step), "source": "input"}
        yield {
            "role": "assistant",
            "content": step.text,
            "source": "generate",
            "model": model,
            "metadata": {"operations": [str(operation.kind) for operation in step.operations]},
        }


def _observation_text(step: Step) -> str:
    """Describe an observation; a trace omits prompts that can be rendered again."""
    if step.prompt is not None:
        return step.prompt
    lines = [f"[{step.observation.label or step.observation.phase}]"]
    lines += [
        value
        for piece in step.observation.pieces
        for _, value in piece.walk()
        if isinstance(value, str)
    ]
    if step.view.scratchpad:
        lines.append(f"Scratchpad: {step.view.scratchpad}")
    if step.view.query:
        lines.append(f"Query: {step.view.query}")
    lines += [f"Memory {entry.handle}: {entry.text}" for entry in step.view.retrieved]
    return "\n\n".join(lines)


def _usage(records: Sequence[EpisodeRecord]) -> dict[str, int]:
    prompt = sum(record.prompt_tokens for record in records)
    completion = sum(record.completion_tokens for record in records)
    total = prompt + completion
    return {"input_tokens": prompt, "output_tokens": completion, "total_tokens": total}
