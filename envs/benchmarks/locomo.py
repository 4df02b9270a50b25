"""LoCoMo (Maharana et al. 2024, arXiv 2402.17753): dialogues of two people over dated sessions.

Every turn of ``locomo10.json`` becomes a document whose title is the date of its session; the turns
that a question's evidence names are gold.

By default, every question hints that it may have no answer. The authors' ``evaluate_gpts.py`` asks
temporal questions for a date and lets adversarial ones choose between two options in random order,
one question at a time: `OFFICIAL`, in our words; `read_wording` reads the authors' own.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, Literal

from msgspec import Struct

from atommem.dialects import fill
from atommem.envs.benchmarks.long_texts import QUESTIONS, Asked, grouped_tasks
from atommem.envs.benchmarks.rows import Row, Text, read_rows
from atommem.envs.scoring.metrics import ABSTENTION, CATEGORIES, LOCOMO_SOURCE, hint
from atommem.envs.task import Document, Question, Task
from atommem.errors import ConfigError

NOT_MENTIONED = "Not mentioned in the conversation"
"""The right option of an adversarial question."""
HINTED = dict.fromkeys(("other", "temporal", "adversarial"), "{question}" + hint("conversation"))
"""Templates of questions by category; ``{a}`` and ``{b}`` stand for the two options."""
OFFICIAL = {
    "other": "{question}",
    "temporal": "{question} (Tell the approximate date, by the date of the conversation.)",
    "adversarial": "{question} Choose the right answer: (a) {a} (b) {b}",
}
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
    answer: Text | int | float | None = None
    adversarial_answer: Text | int | float | None = None
    evidence: list[str] = []


def read_wording(given: str) -> dict[str, str]:
    """Return `OFFICIAL`, changed by the YAML file `given` unless it is ``official``.

    Raises:
        ConfigError: The file cannot be read, or has another field.
    """
    import yaml

    if given == "official":
        return OFFICIAL
    try:
        values = yaml.safe_load(Path(given).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(
            f"wording={given}: cannot be read ({error}). Give official, or a YAML file."
        ) from error
    if not isinstance(values, dict) or values.keys() - OFFICIAL.keys():
        raise ConfigError(f"wording={given}: expected some of {', '.join(OFFICIAL)}. Correct it.")
    for name, text in values.items():
        if "{question}" not in str(text) or ("{a}" in text) != ("{b}" in text):
            raise ConfigError(
                f"wording={given}: {name} is {text!r}. Give a text with {{question}}, and with "
                "both or none of {a} and {b}."
            )
    return {**OFFICIAL, **values}


def read_locomo(
    path: str | Path, questions: int = QUESTIONS, wording: Mapping[str, str] = HINTED
) -> Iterator[Task]:
    """Yield the tasks of ``locomo10.json`` or a file in its format; arguments as `parse_locomo`."""
    for row in read_rows(path):
        yield from parse_locomo(row, questions, wording)


def parse_locomo(
    row: Row, questions: int = QUESTIONS, wording: Mapping[str, str] = HINTED
) -> Iterator[Task]:
    """Yield the tasks of one conversation, of so many questions each: ``locomo-SAMPLE-NUMBER``."""
    sample = row.text("sample_id")
    turns = _turns(row)
    places = {name: place for place, name in enumerate(turns)}
    asked = []
    for number, item in enumerate(row.convert("qa", row.get("qa"), list[_QA])):
        question = _question(row, item, f"{sample}-{number:03d}", turns, wording)
        evidence = frozenset(places[turn] for turn in question.metadata["evidence"])
        asked.append(Asked(question, evidence))
    if not asked:
        raise row.error("qa", "has no question")
    yield from grouped_tasks(LOCOMO_SOURCE, sample, asked, [*turns.values()], size=questions)


def _turns(row: Row) -> dict[str, Document]:
    """Return the turns by their ids (``D1:3``), in the order of the dialogue."""
    conversation = row.convert("conversation", row.get("conversation"), dict[str, Any])
    numbers = sorted(int(match[1]) for name in conversation if (match := _SESSION.fullmatch(name)))
    turns: dict[str, Document] = {}
    for number in numbers:
        name = f"session_{number}"
        date = row.convert(
            f"conversation.{name}_date_time", conversation.get(f"{name}_date_time"), Text
        )
        for turn in row.convert(f"conversation.{name}", conversation[name], list[_Turn]):
            text = turn.text or ""
            if turn.blip_caption:
                text = f"{text} [shares an image: {turn.blip_caption}]".strip()
            identifier = next(iter(_turn_ids(turn.dia_id)), turn.dia_id)
            turns[identifier] = Document(date, f"{turn.speaker}: {text}")
    if not turns:
        raise row.error("conversation", "has no turn")
    return turns


def _question(
    row: Row, item: _QA, identifier: str, turns: Mapping[str, Any], wording: Mapping[str, str]
) -> Question:
    category = CATEGORIES[item.category]
    named = [turn for text in item.evidence for turn in _turn_ids(text) or [text.strip()] if turn]
    metadata: dict[str, Any] = {
        "category": category,
        "evidence": [turn for turn in named if turn in turns],
    }
    if unknown := [turn for turn in named if turn not in turns]:  # the official file has some
        metadata["evidence_without_turn"] = unknown
        warnings.warn(
            f"{row.place}: evidence of question {identifier} names {', '.join(unknown)}, which is "
            "not a turn of the conversation.",
            stacklevel=2,
        )
    if category == "adversarial":
        answer = ABSTENTION
        metadata["adversarial_answer"] = str(item.adversarial_answer or "")
    elif item.answer is None:
        raise row.error("qa", f"has no answer to question {identifier}")
    else:
        answer = str(item.answer)
        if category == "open_domain":
            answer = answer.split(";")[0].strip()
    template = wording.get(category, wording["other"])
    values = {"question": item.question.strip()}
    if "{a}" in template:
        both = [NOT_MENTIONED, metadata.get("adversarial_answer", "")]
        Random(f"42:{identifier}").shuffle(both)
        metadata["options"] = dict(zip("ab", both, strict=True))
        values |= metadata["options"]
    return Question(fill(template, values), (answer,), id=identifier, metadata=metadata)


def _turn_ids(text: str) -> list[str]:
    return [f"D{int(session)}:{int(turn)}" for session, turn in _TURN.findall(text)]
