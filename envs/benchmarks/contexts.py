"""MemAgent and MemoryAgentBench: questions about a text that comes joined (`Task.context`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from atommem.envs.benchmarks.conversations import Asked, grouped_tasks
from atommem.envs.benchmarks.rows import Row, Text
from atommem.envs.task import Question, Task

MEMAGENT, MEMORY_AGENT_BENCH = "memagent", "memoryagentbench"
_FORMS = {
    "icl_": " (Answer with the number of the label alone.)",
    "factconsolidation_": " (Where facts of the text contradict each other, the one with the "
    "higher number is right.)",
    "eventqa_": " (Which event happens next?)",
    "recsys_": " (Recommend 20 films.)",
}
"""The form of an answer by part of the benchmark: the authors' prompt in our words."""


class _Message(Struct):
    content: Any
    role: str = "user"


class _RewardModel(Struct):
    ground_truth: Any


def parse_memagent(row: Row) -> Iterator[Task]:
    """Yield the task of a row of MemAgent's training parquet or ``eval_N.json``: ``SOURCE-ROW``.

    A training row has `prompt` (messages), `reward_model` (`ground_truth`), `data_source` and
    `extra_info`; an evaluation row has `input` and `answers`. Of several questions, both question
    and ground truth are lists of one length; of one, the ground truth lists accepted answers.
    """
    source, described = MEMAGENT, row.values
    if "reward_model" in row.values:
        name, asked = "prompt", row.get("prompt")
        if isinstance(asked, list) and asked and isinstance(asked[0], dict):
            messages = row.convert("prompt", asked, list[_Message])
            asked = [message.content for message in messages if message.role == "user"]
            asked = asked[0] if asked else []
        truth = row.convert("reward_model", row.decoded("reward_model"), _RewardModel).ground_truth
        source = row.optional_text("data_source") or MEMAGENT
        described = row.values.get("extra_info") or {}
    else:
        name, asked, truth = "input", row.get("input"), row.get("answers")
    texts = row.convert(name, [asked] if isinstance(asked, str) else asked, list[Text])
    if not texts:
        raise row.error(name, "has no question")
    task_id = f"{source}-{row.number - 1:05d}"
    answers = _answers(row, "answers" if name == "input" else "reward_model", truth, len(texts))
    yield Task(
        id=task_id,
        questions=tuple(
            Question(text.strip(), found, id=f"{task_id}-{number}")
            for number, (text, found) in enumerate(zip(texts, answers, strict=True))
        ),
        context=row.text("context"),
        source=source,
        metadata={name: described[name] for name in ("index", "num_docs") if name in described},
    )


class _Metadata(Struct):
    source: Text
    qa_pair_ids: list[str] | None = None
    question_types: list[str] | None = None


def parse_memory_agent_bench(row: Row) -> Iterator[Task]:
    """Yield the tasks of one text of MemoryAgentBench (Hu et al. 2025, arXiv 2507.05257).

    Its parts have scores of their own (sub-EM, recall, ROUGE, a judge); ours are the same for all.
    """
    metadata: _Metadata = row.convert("metadata", row.decoded("metadata"), _Metadata)
    part = metadata.source
    form = next((text for start, text in _FORMS.items() if part.startswith(start)), "")
    texts = row.convert("questions", row.get("questions"), list[Text])
    if not texts:
        raise row.error("questions", "is empty")
    answers = _answers(row, "answers", row.get("answers"), len(texts))
    sample = f"{part}.{row.number - 1}"
    asked = []
    for number, (text, golds) in enumerate(zip(texts, answers, strict=True)):
        name = _of_question(metadata.qa_pair_ids, number, len(texts))
        kind = _of_question(metadata.question_types, number, len(texts))
        attributes = {"subset": part, **({"type": kind} if kind else {})}
        name = name or f"{sample}-{number:03d}"
        asked.append(Asked(Question(text.strip() + form, golds, name, attributes)))
    context = row.text("context")
    yield from grouped_tasks(MEMORY_AGENT_BENCH, sample, asked, context=context, subset=part)


def _of_question(values: list[str] | None, number: int, count: int) -> str:
    """Return the value of a question, "" if there is not one for each question."""
    return values[number] if values is not None and len(values) == count else ""


def _answers(row: Row, name: str, truth: Any, count: int) -> list[tuple[str, ...]]:
    """Return the accepted answers of each of `count` questions."""
    groups = [truth] if isinstance(truth, str) else row.convert(name, truth, list[Any])
    if count == 1 and not (len(groups) == 1 and isinstance(groups[0], list)):
        groups = [groups]
    if len(groups) != count:
        raise row.error(name, f"has answers for {len(groups)} questions, but the row asks {count}")
    lists = [[group] if isinstance(group, str) else group for group in groups]
    found: list[list[str]] = row.convert(name, lists, list[list[str]])
    answers = [tuple(dict.fromkeys(filter(str.strip, group))) for group in found]
    if () in answers:
        raise row.error(name, "is empty")
    return answers
