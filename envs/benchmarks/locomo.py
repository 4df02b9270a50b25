"""LoCoMo (Maharana et al. 2024, arXiv 2402.17753): dialogues of two people over dated sessions.

Every turn of ``locomo10.json`` becomes a document whose title is the date of its session; the turns
that a question's evidence names are gold.

By default, every question hints that it may have no answer. The authors' ``evaluate_gpts.py`` asks
temporal questions for a date and lets adversarial ones choose between two options in random order,
one question at a time: `official`, in our words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, Literal

from msgspec import Struct

from atommem.envs.benchmarks.long_texts import QUESTIONS, grouped_tasks
from atommem.envs.benchmarks.rows import Row, Text
from atommem.envs.scoring.metrics import ABSTENTION, CATEGORIES, LOCOMO_SOURCE, hint
from atommem.envs.task import Document, Question, Task

NOT_MENTIONED = "Not mentioned in the conversation"
"""The right option of an adversarial question."""
_SESSION = re.compile(r"session_(\d+)")
# Also in the official file: several in one string, and "D:11:26".
_TURN = re.compile(r"D:?(\d+):(\d+)")


class _Turn(Struct):
    dia_id: Text
    speaker: Text
    text: str | None = None
    blip_caption: str | None = None


class _QA(Struct):
    question: Text
    category: Literal[1, 2, 3, 4, 5]
    answer: Text | None = None
    adversarial_answer: Text | None = None
    evidence: list[str] = []


def parse_locomo(row: Row, questions: int = QUESTIONS, official: bool = False) -> Iterator[Task]:
    """Yield the tasks of one conversation, of so many questions each: ``locomo-SAMPLE-NUMBER``.

    With `official`, questions are asked as the authors do.
    """
    sample = row.text("sample_id")
    turns = _turns(row)
    places = {name: place for place, name in enumerate(turns)}
    asked = []
    for number, item in enumerate(row.convert("qa", row.get("qa"), list[_QA])):
        question = _question(row, item, f"{sample}-{number:03d}", official)
        named = (name for text in item.evidence for name in _turn_ids(text))
        # The official file names some turns that do not exist.
        asked.append((question, [places[name] for name in named if name in places]))
    if not asked:
        raise row.error("qa", "has no question")
    yield from grouped_tasks(LOCOMO_SOURCE, sample, asked, [*turns.values()], size=questions)


def _turns(row: Row) -> Mapping[str, Document]:
    """Return the turns by their ids (``D1:3``), in the order of the dialogue."""
    conversation = row.convert("conversation", row.get("conversation"), dict[str, Any])
    numbers = sorted(int(match[1]) for name in conversation if (match := _SESSION.fullmatch(name)))
    turns: dict[str, Document] = {}
    for name in (f"session_{number}" for number in numbers):
        dated = f"{name}_date_time"
        date = row.convert(f"conversation.{dated}", conversation.get(dated), Text)
        for turn in row.convert(f"conversation.{name}", conversation[name], list[_Turn]):
            text = turn.text or ""
            if turn.blip_caption:
                text = f"{text} [shares an image: {turn.blip_caption}]".strip()
            identifier = next(iter(_turn_ids(turn.dia_id)), turn.dia_id)
            turns[identifier] = Document(date, f"{turn.speaker}: {text}")
    if not turns:
        raise row.error("conversation", "has no turn")
    return turns


def _question(row: Row, item: _QA, identifier: str, official: bool) -> Question:
    category = CATEGORIES[item.category]
    metadata: dict[str, Any] = {"category": category}
    text, adversarial = item.question.strip(), category == "adversarial"
    found = (item.adversarial_answer if adversarial else item.answer) or ""
    if not found and (official or not adversarial):
        raise row.error("qa", f"has no {'adversarial_' * adversarial}answer to {identifier}")
    answer = ABSTENTION if adversarial else found
    if category == "open_domain":
        answer = answer.split(";")[0].strip()
    if not official:
        text += hint("conversation")
    elif category == "temporal":
        text += " (Tell the approximate date, by the date of the conversation.)"
    elif adversarial:
        both = [NOT_MENTIONED, found]
        Random(f"42:{identifier}").shuffle(both)
        metadata["options"] = dict(zip("ab", both, strict=True))
        text += " Choose the right answer: (a) {a} (b) {b}".format(**metadata["options"])
    return Question(text, (answer,), id=identifier, metadata=metadata)


def _turn_ids(text: str) -> list[str]:
    return [f"D{int(session)}:{int(turn)}" for session, turn in _TURN.findall(text)]
