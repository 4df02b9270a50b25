"""Answers in the benchmarks' official prediction formats, for their own scripts and leaderboards.

=====================  =====================================================================================
HotpotQA               ``{"answer": {id: text}, "sp": {}}``; 2WikiMultihopQA's has ``"evidence": {}`` too
MuSiQue                a line for each question: ``id``, ``predicted_answer``, ``predicted_support_idxs``
                       (none), ``predicted_answerable``; its script wants them in the order of the gold file
LoCoMo                 for each conversation its ``qa`` with ``atommem_prediction``
LongMemEval            a line for each question: ``question_id``, ``hypothesis``
=====================  =====================================================================================

We predict no supporting facts: these scores of the scripts are 0 and mean nothing. A question that several episodes
answered has the answer of the first sample of its first task. Questions of failed episodes have none.
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
"""Of questions: their id, and whether they can be answered (MuSiQue-Full asks each twice; elsewhere "")."""
Answers = Mapping[tuple[str, str], QuestionRecord]


def write_predictions(
    evaluations: Sequence[Evaluation], out: Path, gold: Path | None = None
) -> list[Path]:
    """Write a file for each evaluation and benchmark that has an official format, into `out`.

    Args:
        evaluations: With the sources of their tasks.
        out: Folder, made if it is not there.
        gold: The benchmark's own file: MuSiQue's predictions follow its order, and every row of it has one.

    Raises:
        ConfigError: No evaluation has tasks of a benchmark with such a format.
        DataError: `gold` cannot be read, or has no ids.
    """
    rows = read_rows(gold) if gold is not None else ()
    keys = [
        (row.text("id", "_id", "question_id"), str(row.values.get("answerable", "")))
        for row in rows
    ]
    written: list[Path] = []
    for item in evaluations:
        for source in sorted({record.source for record in item.records} & FORMATS.keys()):
            answers = _answers([record for record in item.records if record.source == source])
            data = source if item.dataset == source else f"{item.dataset}-{source}"
            name = (
                f"{item.row}-{data}"
                + (f"-{item.documents}" if item.documents else "")
                + f"-seed{item.seed}"
            )
            ending, values = FORMATS[source]
            path = out / f"{file_stem(name)}.{ending}"
            lines = (
                json.dumps(value, ensure_ascii=False) + "\n" for value in values(answers, keys)
            )
            write_text(path, clean("".join(lines)))
            written.append(path)
    if not written:
        found = sorted(
            {record.source or "unknown" for item in evaluations for record in item.records}
        )
        raise ConfigError(
            f"export is 'predictions', and the tasks are of {', '.join(found) or 'nothing'}: official formats are "
            f"known of {', '.join(FORMATS)}."
        )
    return written


def _answers(records: Sequence[EpisodeRecord]) -> dict[tuple[str, str], QuestionRecord]:
    found: dict[tuple[str, str], QuestionRecord] = {}
    for record in sorted(records, key=lambda record: record.sample):
        for question in record.questions:
            if not question.id:
                raise DataError(
                    f"task {record.task_id!r} has a question without an id, which predictions go by."
                )
            found.setdefault((question.id, question.attributes.get("answerable", "")), question)
    return found


def _hotpot(answers: Answers, keys: Keys, **more: Any) -> Iterator[Any]:
    yield {"answer": {key[0]: item.answer or "" for key, item in answers.items()}, "sp": {}, **more}


def _musique(answers: Answers, keys: Keys) -> Iterator[Any]:
    for key in keys or answers:
        item = answers.get(key) or answers.get((key[0], ""))
        answer = item.answer if item is not None else None
        # As `sufficiency`: silence is no abstention.
        shared = {"predicted_support_idxs": [], "predicted_answerable": not abstains(answer)}
        yield {"id": key[0], "predicted_answer": answer or "", **shared}


def _locomo(answers: Answers, keys: Keys) -> Iterator[Any]:
    numbers = {name: number for number, name in CATEGORIES.items()}
    conversations: dict[str, dict[int, Any]] = {}
    for (identifier, _), item in answers.items():
        sample, _, index = identifier.rpartition("-")
        # A right option of an adversarial question may be answered by its letter alone.
        right = item.category == "adversarial" and item.metrics.get("em") == 1.0
        answer = {
            "question": item.question,
            "answer": item.golds[0],
            "category": numbers[item.category],
        }
        answer[KEY] = ABSTENTION if right and not abstains(item.answer) else item.answer or ""
        conversations.setdefault(sample, {})[int(index)] = answer
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
"""By the source of the tasks, the ending of the file's name, and its lines: from the answers and the gold file's keys
(none where it is not given)."""
