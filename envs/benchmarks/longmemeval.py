"""LongMemEval (Wu et al. 2024, arXiv 2410.10813): 500 questions, each about a history of dated chats of its own.

``longmemeval_s_cleaned.json``, ``longmemeval_m_cleaned.json`` and ``longmemeval_oracle.json`` (and the releases before
the cleaned ones) are lists of questions. Every turn becomes a document whose title is its session's date, sessions in
the order of their dates; gold are the turns with `has_answer`, or all of `answer_session_ids` where none has it. The
question tells its own date, as the authors' prompt does. An id that ends in ``_abs`` is a question that the history
does not answer.

The official score is a judge's. Of `single-session-preference` the answer is a rubric, which no comparison of strings
can score.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from atommem.envs.benchmarks.conversations import Asked, grouped_tasks
from atommem.envs.benchmarks.rows import Row
from atommem.envs.scoring.metrics import ABSTENTION, hint
from atommem.envs.task import Document, Question, Task

SOURCE = "longmemeval"


def is_longmemeval(values: Mapping[str, Any]) -> bool:
    """Whether a row has the keys of a LongMemEval question."""
    return {"question_id", "haystack_sessions"} <= values.keys()


def parse_longmemeval(row: Row) -> Iterator[Task]:
    """The task of one question: ``longmemeval-QUESTION_ID-000``."""
    identifier, kind = row.text("question_id"), row.text("question_type")
    abstention = identifier.endswith("_abs")
    answer = row.text_or_number("answer")
    documents, places = _turns(row)
    question = Question(
        f"{row.text('question').strip()} (Asked on {row.text('question_date')}.){hint('history')}",
        (ABSTENTION, answer) if abstention else (answer,),
        identifier,
        {"type": "abstention" if abstention else kind, "abstention": abstention},
    )
    yield from grouped_tasks(SOURCE, identifier, [Asked(question, places)], documents)


def _turns(row: Row) -> tuple[list[Document], frozenset[int]]:
    """All turns by date, and the places of those that hold the evidence."""
    sessions = row.list_of("haystack_sessions")
    dates, identifiers = row.texts("haystack_dates"), row.texts("haystack_session_ids")
    if not len(sessions) == len(dates) == len(identifiers):
        raise row.error(
            "haystack_sessions",
            f"has {len(sessions)} sessions, but there are {len(dates)} haystack_dates and {len(identifiers)} "
            "haystack_session_ids",
        )
    wanted = {*row.texts("answer_session_ids")}
    documents: list[Document] = []
    marked: set[int] = set()
    in_sessions: set[int] = set()
    for index in sorted(range(len(sessions)), key=lambda index: dates[index]):
        for turn in row.check_objects(f"haystack_sessions[{index}]", sessions[index]):
            role, content = turn.text("role"), turn.get("content")
            if not isinstance(content, str):
                raise turn.error("content", f"is {content!r}, expected a string")
            if turn.values.get("has_answer"):
                marked.add(len(documents))
            if identifiers[index] in wanted:
                in_sessions.add(len(documents))
            documents.append(Document(dates[index], f"{role}: {content}"))
    if not documents:
        raise row.error("haystack_sessions", "has no turn")
    return documents, frozenset(marked or in_sessions)
