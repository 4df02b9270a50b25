"""Evaluations as logs of Inspect (inspect_ai), in its JSON format: ``inspect view --log-dir FOLDER`` opens them.

A log is an evaluation, a sample an episode: its id is the task's, its epoch the number of the episode of this task. Its
messages are the episode's steps from the trace: what was new and what the memory showed, and the completion. Its scores
are the episode's metrics; those of the log are ours, over questions, with both ends of their intervals, and not
Inspect's own mean over samples. What Inspect has no place for (memory operations, settings) is metadata.

The format is JSON that its reader checks, so that nothing of Inspect needs to be installed to write it.
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
"""Of the log's format."""


def write_inspect_logs(evaluations: Sequence[Evaluation], out: Path) -> list[Path]:
    """Write a log for each evaluation into the folder `out`, made if it is not there.

    Names begin with the time at which an evaluation was begun, for by that Inspect tells logs from other JSON.

    Raises:
        TraceError: A trace is broken. One that is missing leaves a sample without messages.
    """
    written = []
    for item in evaluations:
        log = inspect_log(item)
        stem = file_stem(f"{log['eval']['task']}_{log['eval']['task_id']}".replace("/", "-"))
        path = out / f"{log['eval']['created'].replace(':', '-')}_{stem}.json"
        write_text(path, clean(json.dumps(log, ensure_ascii=False, indent=1)))
        written.append(path)
    return written


def inspect_log(item: Evaluation) -> dict[str, Any]:
    """One evaluation as the values of an ``EvalLog``."""
    summary = summarize(item.records)
    model = str(_policy(item.manifest))
    begun, ended = _written(item.folder / MANIFEST), _written(item.folder / EPISODES)
    identifier = hashlib.sha256(
        f"{item.row}/{item.column}/{item.seed}/{item.tasks_digest}".encode()
    ).hexdigest()[:22]
    finished = item.planned is None or len(item.records) >= item.planned
    documents = f", {item.documents} documents" if item.documents else ""
    counted = len(item.records) - summary["failed"] - summary["overflow"]
    parts = {"mean": "mean", "ci_low": "low", "ci_high": "high", "questions": "n"}
    scores = [
        {
            "name": name,
            "scorer": name,
            "scored_samples": counted,
            "metrics": {key: {"name": key, "value": estimate[part]} for key, part in parts.items()},
        }
        for name, estimate in summary["metrics"].items()
    ]
    total = {
        "total_samples": item.planned or len(item.records),
        "completed_samples": len(item.records),
    }
    return {
        "version": VERSION,
        "status": "success" if finished else "started",
        "eval": {
            **dict.fromkeys(("eval_id", "run_id", "task_id"), identifier),
            "created": begun,
            "task": f"{item.row} on {item.dataset}{documents}",
            "dataset": {
                "name": item.dataset,
                "samples": len({record.task_id for record in item.records}),
            },
            "model": model,
            "config": {"epochs": 1 + max((record.sample for record in item.records), default=0)},
            "metadata": {"manifest": item.manifest, "seed": item.seed, "setting": item.setting},
        },
        "plan": {"name": "atommem", "steps": [{"solver": item.method, "params": {}}], "config": {}},
        "results": total | {"scores": scores},
        "stats": {
            "started_at": begun,
            "completed_at": ended,
            "model_usage": {model: _usage(item.records)},
        },
        "samples": [_sample(item, record, model) for record in item.records],
    }


def _written(path: Path) -> str:
    """When a file was written last, to the second, in UTC."""
    return datetime.fromtimestamp(int(path.stat().st_mtime), UTC).isoformat()


def _policy(manifest: Mapping[str, Any]) -> Any:
    policy = manifest.get("policy", manifest.get("model", "unknown"))
    return (
        policy.get("model") or policy.get("name") or "policy"
        if isinstance(policy, Mapping)
        else policy or "unknown"
    )


def _sample(item: Evaluation, record: EpisodeRecord, model: str) -> dict[str, Any]:
    path = item.trace(record)
    messages = list(_messages(read_trace(path).episode, model)) if path.is_file() else []
    answers = [question.answer for question in record.questions]
    answer = {"role": "assistant", "content": "\n".join(answer or "" for answer in answers)}
    scored = {} if record.overflowed or record.failed else record.metrics
    said = "\n".join(answer or "(none)" for answer in answers)
    details = [question.metrics | question.attributes for question in record.questions]
    sample: dict[str, Any] = {
        "id": record.task_id,
        "epoch": record.sample + 1,
        "input": "\n".join(question.question for question in record.questions) or record.task_id,
        "target": [gold for question in record.questions for gold in question.golds[:1]],
        "messages": messages,
        "output": {"model": model, "choices": [{"message": answer, "stop_reason": "stop"}]},
        "scores": {name: {"value": value, "answer": said} for name, value in scored.items()},
        "metadata": {
            "source": record.source,
            "stop_reason": record.stop_reason,
            "questions": details,
        },
        "model_usage": {model: _usage([record])},
        "total_time": record.seconds,
        "uuid": hashlib.sha256(
            f"{record.task_id}/{record.sample}".encode("utf-8", "replace")
        ).hexdigest()[:22],
    }
    if record.failed:
        text = record.error or "unknown"
        sample["error"] = {"message": text, "traceback": text, "traceback_ansi": text}
    return sample


def _messages(episode: Episode, model: str) -> Iterator[dict[str, Any]]:
    for step in episode.steps:
        yield {"role": "user", "content": _shown(step), "source": "input"}
        yield {
            "role": "assistant",
            "content": step.text,
            "source": "generate",
            "model": model,
            "metadata": {"operations": [str(operation.kind) for operation in step.operations]},
        }


def _shown(step: Step) -> str:
    """What a step showed, in words: a prompt that can be made again from it is not kept."""
    if step.prompt is not None:
        return step.prompt
    lines = [f"[{step.observation.label or step.observation.phase}]"]
    lines += [
        str(value)
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
    return {
        "input_tokens": prompt,
        "output_tokens": completion,
        "total_tokens": prompt + completion,
    }
