"""MemoryAgentBench (Hu et al. 2025, arXiv 2507.05257): one long text, many questions about it.

The parquet files of the four competencies (``Accurate_Retrieval``, ``Test_Time_Learning``,
``Long_Range_Understanding``, ``Conflict_Resolution``) have the columns `context`, `questions`, `answers` and
`metadata`, in which `source` names the part that a row belongs to (``ruler_qa1_197K``, ``eventqa_full``, ...), and
`qa_pair_ids` and `question_types` say more of each question where there are any. A question's answers are a list of
those that count.

Some parts ask for an answer of a certain form, which the authors say in the prompt: here it follows the question, in
words of ours. Their own scores differ by part (sub-EM, recall, ROUGE, a judge); ours are the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from atommem.envs.benchmarks.conversations import Asked, grouped_tasks
from atommem.envs.benchmarks.rows import Row
from atommem.envs.task import Question, Task

SOURCE = "memoryagentbench"

_FORMS = {
    "icl_": " (Answer with the number of the label alone.)",
    "factconsolidation_": " (Where facts of the text contradict each other, the one with the higher number is right.)",
    "eventqa_": " (Which event happens next?)",
    "recsys_": " (Recommend 20 films.)",
}
"""Beginning of `metadata.source`, and what its questions are followed by."""


def is_memory_agent_bench(values: Mapping[str, Any]) -> bool:
    """Whether a row has the columns of MemoryAgentBench."""
    return {"context", "questions", "answers"} <= values.keys()


def parse_memory_agent_bench(row: Row) -> Iterator[Task]:
    """The tasks of one text: ``memoryagentbench-SOURCE.ROW-NUMBER``, the row counted from 0."""
    metadata = row.check_object("metadata", row.decoded("metadata"))
    part = metadata.text("source")
    form = next((text for start, text in _FORMS.items() if part.startswith(start)), "")
    questions = row.texts("questions")
    if not questions:
        raise row.error("questions", "is empty")
    answers = _answers(row, len(questions))
    identifiers = _of_each(metadata, "qa_pair_ids", len(questions))
    types = _of_each(metadata, "question_types", len(questions))
    sample = f"{part}.{row.number - 1}"
    asked = [
        Asked(
            Question(
                text.strip() + form,
                golds,
                identifiers[i] or f"{sample}-{i:03d}",
                {"subset": part, **({"type": types[i]} if types[i] else {})},
            )
        )
        for i, (text, golds) in enumerate(zip(questions, answers, strict=True))
    ]
    yield from grouped_tasks(SOURCE, sample, asked, context=row.text("context"), subset=part)


def _answers(row: Row, count: int) -> list[tuple[str, ...]]:
    """The answers of each of `count` questions. Of a single one, they may stand in the list themselves."""
    given = row.list_of("answers")
    if count == 1 and len(given) != 1:
        given = [given]
    if len(given) != count:
        raise row.error(
            "answers", f"has answers for {len(given)} questions, but the row asks {count}"
        )
    return [row.check_answers(f"answers[{i}]", item) for i, item in enumerate(given)]


def _of_each(metadata: Row, name: str, count: int) -> list[str]:
    """A list of `metadata` with a text for each question; blanks where it has none, or no list of this length."""
    given = metadata.values.get(name) or []
    metadata.check_texts(name, given)
    return list(given) if len(given) == count else [""] * count
