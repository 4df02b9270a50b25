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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atommem.envs.benchmarks.rows import read_rows
from atommem.envs.scoring.abstention import ABSTENTION, abstains
from atommem.envs.scoring.locomo_scores import CATEGORIES
from atommem.envs.scoring.records import EpisodeRecord, QuestionRecord
from atommem.errors import ConfigError, DataError
from atommem.eval.output import file_stem
from atommem.eval.reporting.evaluations import Evaluation
from atommem.untrusted import clean

KEY = "atommem_prediction"
Answers = Mapping[tuple[str, str], QuestionRecord]
"""By id, and by whether the question can be answered (MuSiQue-Full asks each twice; elsewhere "")."""


@dataclass(frozen=True)
class Format:
    """How the predictions of a benchmark are written.

    Attributes:
        ending: Of the file's name.
        text: The file, from the answers and the rows of the gold file (none where it is not given).
    """

    ending: str
    text: Callable[[Answers, Sequence[Mapping[str, Any]]], str]


def write_predictions(evaluations: Sequence[Evaluation], out: Path, gold: Path | None = None) -> list[Path]:
    """Write a file for each evaluation and benchmark that has an official format, into `out`.

    Args:
        evaluations: With the sources of their tasks.
        out: Folder, made if it is not there.
        gold: The benchmark's own file: MuSiQue's predictions follow its order, and every row of it has one.

    Raises:
        ConfigError: No evaluation has tasks of a benchmark with such a format.
        DataError: `gold` cannot be read, or has no ids.
    """
    rows = (
        [] if gold is None else [{**row.values, "id": row.text("id", "_id", "question_id")} for row in read_rows(gold)]
    )
    written: list[Path] = []
    for item in evaluations:
        for source in sorted({record.source for record in item.records} & FORMATS.keys()):
            answers = _answers([record for record in item.records if record.source == source])
            data = source if item.dataset == source else f"{item.dataset}-{source}"
            name = f"{item.row}-{data}" + (f"-{item.documents}" if item.documents else "") + f"-seed{item.seed}"
            out.mkdir(parents=True, exist_ok=True)
            path = out / f"{file_stem(name)}.{FORMATS[source].ending}"
            path.write_text(clean(FORMATS[source].text(answers, rows)), encoding="utf-8")
            written.append(path)
    if not written:
        found = sorted({record.source or "unknown" for item in evaluations for record in item.records})
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
                raise DataError(f"task {record.task_id!r} has a question without an id, which predictions go by.")
            found.setdefault((question.id, question.attributes.get("answerable", "")), question)
    return found


def _text(question: QuestionRecord) -> str:
    return question.answer or ""


def _hotpot(answers: Answers, rows: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps({"answer": {key[0]: _text(item) for key, item in answers.items()}, "sp": {}})


def _twowiki(answers: Answers, rows: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps({**json.loads(_hotpot(answers, rows)), "evidence": {}})


def _musique(answers: Answers, rows: Sequence[Mapping[str, Any]]) -> str:
    keys = [_key(answers, row) for row in rows] or list(answers)
    lines = []
    for key in keys:
        answer = answers[key].answer if key in answers else None
        lines.append(
            {
                "id": key[0],
                "predicted_answer": answer or "",
                "predicted_support_idxs": [],
                "predicted_answerable": not abstains(answer),  # as `sufficiency`: silence is no abstention
            }
        )
    return _lines(lines)


def _key(answers: Answers, row: Mapping[str, Any]) -> tuple[str, str]:
    full = (str(row["id"]), str(row.get("answerable", "")))
    return full if full in answers else (full[0], "")


def _locomo(answers: Answers, rows: Sequence[Mapping[str, Any]]) -> str:
    numbers = {name: number for number, name in CATEGORIES.items()}
    conversations: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for (identifier, _), item in answers.items():
        sample, _, index = identifier.rpartition("-")
        # A right option of an adversarial question may be answered by its letter alone.
        right = item.category == "adversarial" and item.metrics.get("em") == 1.0
        answer = {"question": item.question, "answer": item.golds[0], "category": numbers[item.category]}
        answer[KEY] = ABSTENTION if right and not abstains(item.answer) else _text(item)
        conversations.setdefault(sample, []).append((int(index), answer))
    return json.dumps(
        [
            {"sample_id": sample, "qa": [answer for _, answer in sorted(found, key=lambda pair: pair[0])]}
            for sample, found in conversations.items()
        ],
        ensure_ascii=False,
    )


def _longmemeval(answers: Answers, rows: Sequence[Mapping[str, Any]]) -> str:
    return _lines([{"question_id": key[0], "hypothesis": _text(item)} for key, item in answers.items()])


def _lines(values: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)


FORMATS = {
    "hotpotqa": Format("json", _hotpot),
    "2wikimultihopqa": Format("json", _twowiki),
    "musique": Format("jsonl", _musique),
    "locomo": Format("json", _locomo),
    "longmemeval": Format("jsonl", _longmemeval),
}
"""By the source of the tasks."""
