"""LoCoMo (Maharana et al. 2024, arXiv 2402.17753): long dialogues of two people over many dated sessions.

The official ``locomo10.json`` is a list of conversations. Every turn becomes a document whose title is its session's
date and time, so that no cut separates the two; the turns that a question's evidence names are gold. A conversation has
some two hundred questions: they are asked in tasks of `QUESTIONS`, each of which reads the conversation from its
beginning.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from atommem.envs.benchmarks.rows import Row, read_rows
from atommem.envs.scoring.locomo_scores import ABSTENTION, CATEGORIES, LOCOMO_SOURCE
from atommem.envs.task import Document, Question, Task

QUESTIONS = 10
HINT = f' (If the conversation does not tell, answer "{ABSTENTION}".)'
"""Follows every question, so that an adversarial one can be answered rightly; it is the same for all categories."""

_SESSION = re.compile(r"session_(\d+)")
# Also in the official file: several in one string, and "D:11:26".
_TURN = re.compile(r"D:?(\d+):(\d+)")


def is_locomo(values: Mapping[str, Any]) -> bool:
    """Whether a row has the keys of a LoCoMo conversation."""
    return {"conversation", "qa"} <= values.keys()


def read_locomo(path: str | Path, questions: int = QUESTIONS) -> Iterator[Task]:
    """Read ``locomo10.json`` or a file in its format.

    Args:
        path: The file.
        questions: Questions of a task, the last one of a conversation excepted.

    Raises:
        DataError: The file is not in this layout, or damaged.
    """
    for row in read_rows(path):
        yield from parse_locomo(row, questions)


def parse_locomo(row: Row, questions: int = QUESTIONS) -> Iterator[Task]:
    """The tasks of one conversation: ``locomo-SAMPLE-NUMBER``."""
    sample = row.text("sample_id")
    turns = _turns(row)
    asked = [_question(row, i, item, sample, turns) for i, item in enumerate(row.check_list("qa", row.get("qa")))]
    if not asked:
        raise row.error("qa", "has no question")
    for number, start in enumerate(range(0, len(asked), questions)):
        group = tuple(asked[start : start + questions])
        evidence = {turn for question in group for turn in question.metadata["evidence"]}
        places = {name: place for place, name in enumerate(turns)}
        yield Task(
            id=f"{LOCOMO_SOURCE}-{sample}-{number:03d}",
            questions=tuple(
                question.with_documents(places[turn] for turn in {*question.metadata["evidence"]}) for question in group
            ),
            documents=tuple(Document(date, text, name in evidence) for name, (date, text) in turns.items()),
            source=LOCOMO_SOURCE,
            metadata={"sample_id": sample},
        )


def _turns(row: Row) -> dict[str, tuple[str, str]]:
    """Date and text of every turn by its id (``D1:3``), in the order of the dialogue."""
    conversation = row.get("conversation")
    if not isinstance(conversation, dict):
        raise row.error("conversation", "must be an object with session_1, session_1_date_time, ...")
    numbers = sorted(int(match[1]) for name in conversation if (match := _SESSION.fullmatch(name)))
    turns: dict[str, tuple[str, str]] = {}
    for number in numbers:
        name = f"session_{number}"
        date = row.check_text(f"conversation.{name}_date_time", conversation.get(f"{name}_date_time"))
        for i, turn in enumerate(row.check_list(f"conversation.{name}", conversation[name])):
            where = f"conversation.{name}[{i}]"
            if not isinstance(turn, dict):
                raise row.error(where, f"is {turn!r}, expected an object")
            speaker = row.check_text(f"{where}.speaker", turn.get("speaker"))
            text = turn.get("text") or ""
            if turn.get("blip_caption"):
                text = f"{text} [shares an image: {turn['blip_caption']}]".strip()
            identifier = row.check_text(f"{where}.dia_id", turn.get("dia_id"))
            turns[_turn_ids(identifier)[0] if _turn_ids(identifier) else identifier] = (date, f"{speaker}: {text}")
    if not turns:
        raise row.error("conversation", "has no turn")
    return turns


def _question(row: Row, index: int, item: Any, sample: str, turns: Mapping[str, Any]) -> Question:
    name = f"qa[{index}]"
    if not isinstance(item, dict):
        raise row.error(name, f"is {item!r}, expected an object")
    number = item.get("category")
    if number not in CATEGORIES:
        raise row.error(f"{name}.category", f"is {number!r}, expected one of 1 to 5")
    category = CATEGORIES[number]
    named = [
        turn
        for text in row.texts(f"{name}.evidence", item.get("evidence", []))
        for turn in _turn_ids(text) or [text.strip()]
    ]
    metadata: dict[str, Any] = {"category": category, "evidence": [turn for turn in named if turn in turns]}
    if unknown := [turn for turn in named if turn not in turns]:
        # The official file has some: they are said and kept, as refusing the file would be no help.
        metadata["evidence_without_turn"] = unknown
        warnings.warn(
            f"{row.place}: field '{name}.evidence' names {', '.join(unknown)}, which is no turn of the conversation: "
            "the oracle does not show it. Mend the row if it is yours.",
            stacklevel=2,
        )
    if category == "adversarial":
        answer = ABSTENTION
        metadata["adversarial_answer"] = str(item.get("adversarial_answer", ""))
    else:
        # Years and counts are numbers in the file.
        given = item.get("answer", "")
        answer = row.check_text(f"{name}.answer", str(given) if type(given) in (int, float) else given)
        if category == "open_domain":
            answer = answer.split(";")[0].strip()
    text = row.check_text(f"{name}.question", item.get("question")).strip()
    return Question(text + HINT, (answer,), id=f"{sample}-{index:03d}", metadata=metadata)


def _turn_ids(text: str) -> list[str]:
    return [f"D{int(session)}:{int(turn)}" for session, turn in _TURN.findall(text)]
