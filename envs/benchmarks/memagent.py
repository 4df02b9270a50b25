"""MemAgent's long-document files: the training parquet, ``eval_N.json``, and their variant with several questions.

Their text comes ready joined ("Document 1: ..."), so the tasks have a `context` and no documents.

Training rows have the keys `data_source`, `prompt` (messages; the question is the content of the first one from the
user), `context`, `ability`, `reward_model` (`ground_truth`) and `extra_info`. Evaluation rows have `context`, `input`
(the question), `answers`, `num_docs` and `index`. With several questions, the question is a list of q strings and the
ground truth a list of q lists of answers (or of q strings); with one, the ground truth lists the answers that count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atommem.envs.benchmarks.rows import Row
from atommem.envs.task import Question, Task

SOURCE = "memagent"


def is_memagent(values: Mapping[str, Any]) -> bool:
    """Whether a row has the keys of a MemAgent file, of training or of evaluation."""
    return "context" in values and (
        {"prompt", "reward_model"} <= values.keys() or {"input", "answers"} <= values.keys()
    )


def parse_memagent(row: Row) -> Task:
    """Turn one row into a task, whose id is ``SOURCE-ROW``, with the row's `data_source` and number (from 0)."""
    metadata: dict[str, Any] = {}
    if "reward_model" in row.values:
        asked_name, asked = "prompt", _prompt(row)
        truth_name, truth = "reward_model.ground_truth", _ground_truth(row)
        source = row.text("data_source") if "data_source" in row.values else SOURCE
        extra = row.values.get("extra_info")
        if isinstance(extra, dict):
            metadata = {name: extra[name] for name in ("index", "num_docs") if name in extra}
    else:
        asked_name, asked = "input", row.get("input")
        truth_name, truth = "answers", row.get("answers")
        source = SOURCE
        metadata = {name: row.values[name] for name in ("index", "num_docs") if name in row.values}
    texts = [asked] if isinstance(asked, str) else row.check_list(asked_name, asked)
    if not texts:
        raise row.error(asked_name, "has no question")
    answers = _answers(row, len(texts), truth_name, truth)
    task_id = f"{source}-{row.number - 1:05d}"
    return Task(
        id=task_id,
        questions=tuple(
            Question(row.check_text(asked_name, text).strip(), found, id=f"{task_id}-{i}")
            for i, (text, found) in enumerate(zip(texts, answers, strict=True))
        ),
        context=row.text("context"),
        source=source,
        metadata=metadata,
    )


def _prompt(row: Row) -> Any:
    """The question(s) of a training row: the content of the first message of the user, or the prompt itself."""
    prompt = row.get("prompt")
    if isinstance(prompt, list) and prompt and all(isinstance(message, dict) for message in prompt):
        contents = [
            message.get("content") for message in prompt if message.get("role", "user") == "user"
        ]
        if not contents:
            raise row.error("prompt", "has no message with the role 'user'")
        return contents[0]
    return prompt


def _ground_truth(row: Row) -> Any:
    reward_model = row.decoded("reward_model")
    if not isinstance(reward_model, dict) or "ground_truth" not in reward_model:
        raise row.error("reward_model", "has no 'ground_truth'")
    return reward_model["ground_truth"]


def _answers(row: Row, count: int, name: str, truth: Any) -> list[tuple[str, ...]]:
    """The answers of each of `count` questions."""
    if isinstance(truth, str):
        truth = [truth]
    row.check_list(name, truth)
    nested = bool(truth) and all(isinstance(item, list) for item in truth)
    groups = [truth] if count == 1 and not nested else truth
    if len(groups) != count:
        raise row.error(name, f"has answers for {len(groups)} questions, but the row asks {count}")
    return [
        row.check_answers(f"{name}[{i}]" if count > 1 else name, group)
        for i, group in enumerate(groups)
    ]
