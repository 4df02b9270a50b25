"""Evaluations for other programs: the benchmarks' prediction formats, and logs of Inspect.

=====================  =====================================================================
HotpotQA               ``{"answer": {id: text}, "sp": {}}``; 2WikiMultihopQA adds ``evidence``
MuSiQue                per question ``id``, ``predicted_answer``, ``predicted_support_idxs``
                       (empty), ``predicted_answerable``; in the order of the gold file
LoCoMo                 per conversation its ``qa`` with ``atommem_prediction``
LongMemEval            per question ``question_id``, ``hypothesis``
=====================  =====================================================================

Supporting facts are not predicted: ignore their scores. A question answered in several episodes
has the answer of the first sample of its first task; questions of failed episodes have none.

``inspect view --log-dir FOLDER`` opens the logs. A log is an evaluation, a sample an episode: its
id is the task's, its epoch the sample. Messages are the steps of the trace. Scores of samples are
the episode's; those of the log are ours, over questions, with their intervals. The format is JSON,
so Inspect need not be installed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from atommem.envs.benchmarks.rows import read_rows
from atommem.envs.scoring.metrics import ABSTENTION, CATEGORIES, abstains
from atommem.envs.scoring.records import EpisodeRecord, QuestionRecord, summarize
from atommem.episode import Step
from atommem.errors import ConfigError, DataError
from atommem.eval.output import EPISODES, MANIFEST, file_stem
from atommem.eval.reporting.evaluations import Evaluation
from atommem.files import write_text
from atommem.text_safety import clean
from atommem.trace import read_trace

Keys = Sequence[tuple[str, str]]
"""Question ids with MuSiQue-Full's ``answerable`` flag ("" elsewhere)."""
Answers = Mapping[tuple[str, str], QuestionRecord]
_METRICS = {"mean": "mean", "ci_low": "low", "ci_high": "high", "questions": "n"}


def write_predictions(
    evaluations: Sequence[Evaluation], out: Path, gold: Path | None = None
) -> list[Path]:
    """Write a file for each evaluation and benchmark with an official format.

    Args:
        gold: The benchmark's file, whose order MuSiQue's predictions follow.

    Raises:
        ConfigError: No evaluation has tasks of such a benchmark.
        DataError: `gold` is unreadable, or a question has no id.
    """
    rows = read_rows(gold) if gold is not None else ()
    keys = [
        (row.text("id", "_id", "question_id"), str(row.values.get("answerable", "")))
        for row in rows
    ]
    paths: list[Path] = []
    for item in evaluations:
        for source in sorted({record.source for record in item.records} & FORMATS.keys()):
            answers = _answers([record for record in item.records if record.source == source])
            ending, values = FORMATS[source]
            stem = file_stem(f"{item.row}-{item.column}-{source}-seed{item.seed}")
            lines = (json.dumps(line, ensure_ascii=False) + "\n" for line in values(answers, keys))
            paths.append(out / f"{stem}.{ending}")
            write_text(paths[-1], clean("".join(lines)))
    if not paths:
        found = {record.source or "unknown" for item in evaluations for record in item.records}
        raise ConfigError(
            f"export=predictions: the tasks are of {', '.join(sorted(found)) or 'nothing'}. "
            f"Official formats exist for {', '.join(FORMATS)}."
        )
    return paths


def _answers(records: Sequence[EpisodeRecord]) -> dict[tuple[str, str], QuestionRecord]:
    found: dict[tuple[str, str], QuestionRecord] = {}
    for record in sorted(records, key=lambda record: record.sample):
        for question in record.questions:
            if not question.id:
                raise DataError(f"task {record.task_id!r} has a question without an id.")
            found.setdefault((question.id, question.attributes.get("answerable", "")), question)
    return found


def _hotpot(answers: Answers, keys: Keys, **more: Any) -> Iterator[Any]:
    yield {"answer": {key[0]: item.answer or "" for key, item in answers.items()}, "sp": {}, **more}


def _musique(answers: Answers, keys: Keys) -> Iterator[Any]:
    for key in keys or answers:
        item = answers.get(key) or answers.get((key[0], ""))
        answer = item.answer if item is not None else None
        yield {
            "id": key[0],
            "predicted_answer": answer or "",
            "predicted_support_idxs": [],
            "predicted_answerable": not abstains(answer),
        }


def _locomo(answers: Answers, keys: Keys) -> Iterator[Any]:
    numbers = {name: number for number, name in CATEGORIES.items()}
    conversations: dict[str, dict[int, Any]] = {}
    for (identifier, _), item in answers.items():
        sample, _, index = identifier.rpartition("-")
        # The right option of an adversarial question may be given by its letter alone.
        right = item.category == "adversarial" and item.metrics.get("em") == 1.0
        conversations.setdefault(sample, {})[int(index)] = {
            "question": item.question,
            "answer": item.golds[0],
            "category": numbers[item.category],
            "atommem_prediction": ABSTENTION if right else item.answer or "",
        }
    yield [
        {"sample_id": sample, "qa": [answer for _, answer in sorted(found.items())]}
        for sample, found in conversations.items()
    ]


def _longmemeval(answers: Answers, keys: Keys) -> Iterator[Any]:
    for key, item in answers.items():
        yield {"question_id": key[0], "hypothesis": item.answer or ""}


FORMATS: Mapping[str, tuple[str, Callable[[Answers, Keys], Iterator[Any]]]] = {
    "hotpotqa": ("json", _hotpot),
    "2wikimultihopqa": ("json", partial(_hotpot, evidence={})),
    "musique": ("jsonl", _musique),
    "locomo": ("json", _locomo),
    "longmemeval": ("jsonl", _longmemeval),
}
"""By source of the tasks: the file's ending, and a function that yields its lines."""


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
        paths.append(out / f"{log['eval']['created'].replace(':', '-')}_{stem}.json")
        write_text(paths[-1], clean(json.dumps(log, ensure_ascii=False, indent=1)))
    return paths


def inspect_log(item: Evaluation) -> dict[str, Any]:
    """Return one evaluation as the values of an ``EvalLog``."""
    summary = summarize(item.records)
    policy = item.manifest.get("policy", {})
    model = str(policy.get("model") or policy.get("path") or "unknown")
    start, end = _modified(item.folder / MANIFEST), _modified(item.folder / EPISODES)
    name = f"{item.row}/{item.column}/{item.seed}/{item.tasks_digest}"
    identifier = hashlib.sha256(name.encode()).hexdigest()[:22]
    complete = len(item.records) >= item.planned
    scores = [
        {
            "name": metric,
            "scorer": metric,
            "scored_samples": len(item.records) - summary["failed"] - summary["overflow"],
            "metrics": {key: {"name": key, "value": score[part]} for key, part in _METRICS.items()},
        }
        for metric, score in summary["metrics"].items()
    ]
    tasks = {record.task_id for record in item.records}
    epochs = 1 + max((record.sample for record in item.records), default=0)
    return {
        "version": 2,
        "status": "success" if complete else "started",
        "eval": {
            **dict.fromkeys(("eval_id", "run_id", "task_id"), identifier),
            "created": start,
            "task": f"{item.row} on {item.column}",
            "dataset": {"name": item.dataset, "samples": len(tasks)},
            "model": model,
            "config": {"epochs": epochs},
            "metadata": {"manifest": item.manifest, "seed": item.seed, "setting": item.setting},
        },
        "results": {
            "total_samples": item.planned,
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


def _sample(item: Evaluation, record: EpisodeRecord, model: str) -> dict[str, Any]:
    path = item.trace(record)
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
        "metadata": {
            "source": record.source,
            "stop_reason": record.stop_reason,
            "questions": [question.metrics | question.attributes for question in record.questions],
        },
        "model_usage": {model: _usage([record])},
        "total_time": record.seconds,
    }
    if record.failed:
        text = record.error or "unknown"
        sample["error"] = {"message": text, "traceback": text, "traceback_ansi": text}
    return sample


def _messages(step: Step, model: str) -> Iterator[dict[str, Any]]:
    yield {"role": "user", "content": _observation_text(step), "source": "input"}
    operations = {"operations": [str(operation.kind) for operation in step.operations]}
    reply = {"role": "assistant", "content": step.text, "source": "generate", "model": model}
    yield {**reply, "metadata": operations}


def _observation_text(step: Step) -> str:
    """Describe an observation; a trace omits prompts that can be rendered again."""
    if step.prompt is not None:
        return step.prompt
    lines = [f"[{step.observation.label or step.observation.phase}]"]
    values = (value for piece in step.observation.pieces for _, value in piece.walk())
    lines += [value for value in values if isinstance(value, str)]
    lines += [f"Scratchpad: {step.view.scratchpad}", f"Query: {step.view.query}"]
    lines += [f"Memory {entry.handle}: {entry.text}" for entry in step.view.retrieved]
    return "\n\n".join(lines)


def _usage(records: Sequence[EpisodeRecord]) -> dict[str, int]:
    prompt = sum(record.prompt_tokens for record in records)
    completion = sum(record.completion_tokens for record in records)
    total = prompt + completion
    return {"input_tokens": prompt, "output_tokens": completion, "total_tokens": total}


def _modified(path: Path) -> str:
    return datetime.fromtimestamp(int(path.stat().st_mtime), UTC).isoformat()
