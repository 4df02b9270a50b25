"""Answers in the benchmarks' official prediction formats.

=====================  =====================================================================
HotpotQA               ``{"answer": {id: text}, "sp": {}}``; 2WikiMultihopQA adds ``evidence``
MuSiQue                per question ``id``, ``predicted_answer``, ``predicted_support_idxs``
                       (empty), ``predicted_answerable``; in the order of the gold file
LoCoMo                 per conversation its ``qa`` with ``atommem_prediction``
LongMemEval            per question ``question_id``, ``hypothesis``
=====================  =====================================================================

Supporting facts are not predicted: ignore their scores. A question answered in several episodes
has the answer of the first sample of its first task; questions of failed episodes have none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from atommem.envs.benchmarks.rows import read_rows
from atommem.envs.scoring.locomo_scores import CATEGORIES
from atommem.envs.scoring.metrics import ABSTENTION, abstains
from atommem.envs.scoring.records import EpisodeRecord, QuestionRecord
from atommem.envs.task_files import write_text
from atommem.errors import ConfigError, DataError
from atommem.eval.output import file_stem
from atommem.eval.reporting.evaluations import Evaluation
from atommem.text_safety import clean

KEY = "atommem_prediction"
Keys = Sequence[tuple[str, str]]
"""Question ids with MuSiQue-Full's ``answerable`` flag ("" elsewhere)."""
Answers = Mapping[tuple[str, str], QuestionRecord]


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
            data = source if item.dataset == source else f"{item.dataset}-{source}"
            documents = f"-{item.documents}" if item.documents else ""
            ending, values = FORMATS[source]
            stem = file_stem(f"{item.row}-{data}{documents}-seed{item.seed}")
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
        shared = {"predicted_support_idxs": [], "predicted_answerable": not abstains(answer)}
        yield {"id": key[0], "predicted_answer": answer or "", **shared}


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
            KEY: ABSTENTION if right and not abstains(item.answer) else item.answer or "",
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
