"""BEAM (Tavakoli et al. 2025, "Beyond a Million Tokens"): chats of 100K to 10M tokens, 20 probing questions each.

The parquet files of the splits 100K, 500K and 1M, and of 10M, have `conversation_id`, `chat` and `probing_questions`
(a dict of ten abilities, as text in Python's or JSON's notation). `chat` nests turns in batches, and at 10M these in
plans; a turn has `role`, `content`, `id`, and `time_anchor` where time moves on, which stays the date of what follows.
Every turn becomes a document; gold are those that `source_chat_ids` names. At 10M ids begin anew in every plan, while
questions count on: so does this reader.

The official score is a judge's, over the points of `rubric`, which are kept with the question. Exact match says little
here: golds are whole sentences.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from json import JSONDecodeError
from typing import Any

from atommem.envs.benchmarks.conversations import Asked, grouped_tasks
from atommem.envs.benchmarks.rows import Row, load_json, shown
from atommem.envs.scoring.metrics import ABSTENTION, hint
from atommem.envs.task import Document, Question, Task

SOURCE = "beam"
_GOLDS = ("answer", "ideal_response", "ideal_answer", "ideal_summary", "expected_compliance")
"""What the gold answer is called, by ability."""
_MARK = re.compile(r"\s*->->\s*[\d, N/A]*$")
"""Ends a user's turn; says from which point of the plan the turn was made."""
_DEEPEST = 8


def is_beam(values: Mapping[str, Any]) -> bool:
    """Whether a row has the columns of a BEAM conversation."""
    return {"chat", "probing_questions"} <= values.keys()


def parse_beam(row: Row) -> Iterator[Task]:
    """The tasks of one conversation: ``beam-CONVERSATION-NUMBER``."""
    sample = row.text("conversation_id")
    documents: list[Document] = []
    places: dict[int, int] = {}
    for part in _parts(row):
        before, last, date = max(places, default=-1) + 1, -1, ""
        for turn in _turns(row, "chat", part):
            role, content, number = turn.text("role"), turn.text("content"), turn.get("id")
            if not isinstance(number, int) or number <= last:
                raise turn.error("id", f"is {shown(number)}, expected a whole number beyond {last}")
            if last < 0 and number >= before:
                before = 0  # ids that count on by themselves
            last = number
            date = turn.values.get("time_anchor") or date
            places[before + number] = len(documents)
            documents.append(Document(date, f"{role}: {_MARK.sub('', content)}"))
    if not documents:
        raise row.error("chat", "has no turn")
    asked = list(_questions(row, sample, places))
    if not asked:
        raise row.error("probing_questions", "has no question")
    yield from grouped_tasks(SOURCE, sample, asked, documents)


def _parts(row: Row) -> list[Any]:
    """The chat, or its plans one after the other (10M: objects that each hold one plan, ``plan-1``, ...)."""
    chat = row.list_of("chat")
    plans = [
        value
        for item in chat
        if isinstance(item, dict)
        for name, value in item.items()
        if "plan-" in name
    ]
    return [value for value in plans if value is not None] or [chat]


def _turns(row: Row, name: str, value: Any, depth: int = 0) -> Iterator[Row]:
    """The turns below a value, however deep they are nested."""
    if isinstance(value, dict) and "turns" not in value:
        yield row.check_object(name, value)
    elif isinstance(value, dict):
        yield from _turns(row, f"{name}.turns", value["turns"], depth + 1)
    elif isinstance(value, list) and depth < _DEEPEST:
        for i, item in enumerate(value):
            yield from _turns(row, f"{name}[{i}]", item, depth + 1)
    else:
        raise row.error(name, f"is {shown(value)}, expected turns")


def _questions(row: Row, sample: str, places: Mapping[int, int]) -> Iterator[Asked]:
    abilities = row.check_object("probing_questions", _decoded(row))
    for ability in abilities.values:
        for i, item in enumerate(abilities.objects(ability)):
            gold = item.text(*_GOLDS)
            abstention = ability == "abstention"
            question = Question(
                item.text("question").strip() + hint("chat"),
                (ABSTENTION, gold) if abstention else (gold,),
                f"{sample}-{ability}-{i}",
                {
                    "type": ability,
                    **(
                        {"level": str(item.values["difficulty"])}
                        if item.values.get("difficulty")
                        else {}
                    ),
                    "abstention": abstention,
                    "rubric": item.check_texts("rubric", item.values.get("rubric", [])),
                },
            )
            sources = _numbers(item.values.get("source_chat_ids"))
            yield Asked(
                question, frozenset(places[number] for number in sources if number in places)
            )


def _decoded(row: Row) -> Any:
    value = row.get("probing_questions")
    if isinstance(value, str):
        try:
            value = load_json(value)
        except JSONDecodeError:
            try:
                value = ast.literal_eval(value)
            except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
                raise row.error(
                    "probing_questions", f"is a string but neither JSON nor Python's: {error}"
                ) from error
    return value


def _numbers(value: Any) -> Iterator[int]:
    """All whole numbers in lists and objects."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers(item)
