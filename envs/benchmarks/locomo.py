"""LoCoMo (Maharana et al. 2024, arXiv 2402.17753): long dialogues of two people over many dated sessions.

The official ``locomo10.json`` is a list of conversations. Every turn becomes a document whose title is its session's
date and time, so that no cut separates the two; the turns that a question's evidence names are gold.

How questions are asked (`Wording`): by default all alike, with a hint that they need not have an answer. The authors'
``task_eval/evaluate_gpts.py`` asks temporal questions for a date, and lets adversarial ones choose between two options,
(a) and (b), in random order, one of which is that the conversation does not tell; it asks one question at a time. That
is `PROTOCOL`, in words of ours; the authors' own can be given in their place.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from random import Random
from typing import Any

from atommem.envs.benchmarks.conversations import QUESTIONS, Asked, grouped_tasks
from atommem.envs.benchmarks.rows import Row, read_rows
from atommem.envs.scoring.locomo_scores import CATEGORIES, LOCOMO_SOURCE
from atommem.envs.scoring.metrics import ABSTENTION, hint
from atommem.envs.task import Document, Question, Task
from atommem.errors import ConfigError

NOT_MENTIONED = "Not mentioned in the conversation"
"""The option of an adversarial question that is right."""

_SESSION = re.compile(r"session_(\d+)")
# Also in the official file: several in one string, and "D:11:26".
_TURN = re.compile(r"D:?(\d+):(\d+)")


@dataclass(frozen=True, slots=True)
class Wording:
    """How questions are put to the policy: templates with ``{question}``, by category.

    Attributes:
        other: Those of the categories that have no template of their own.
        temporal: Those that ask for a time.
        adversarial: Those that the conversation does not answer; with ``{a}`` and ``{b}`` it offers two options.
        seed: Decides, with a question's id, which of the two is (a).
    """

    other: str = "{question}" + hint("conversation")
    temporal: str = other
    adversarial: str = other
    seed: int = 42

    def __post_init__(self) -> None:
        for name in ("other", "temporal", "adversarial"):
            text = getattr(self, name)
            if (
                not isinstance(text, str)
                or "{question}" not in text
                or ("{a}" in text) != ("{b}" in text)
            ):
                raise ConfigError(
                    f"wording {name} is {text!r}: give a text with {{question}} in it, and with both or none of "
                    "{a} and {b}."
                )

    def ask(
        self, question: str, category: str, identifier: str, wrong: str
    ) -> tuple[str, dict[str, str]]:
        """The question as it is asked, and its options by their letters (none: an open question)."""
        template = (
            getattr(self, category) if category in ("temporal", "adversarial") else self.other
        )
        options = {}
        if "{a}" in template:
            both = [NOT_MENTIONED, wrong]
            Random(f"{self.seed}:{identifier}").shuffle(both)
            options = dict(zip("ab", both, strict=True))
        values = {"question": question, **options}
        return re.sub(
            r"\{(question|a|b)\}", lambda match: values.get(match[1], match[0]), template
        ), options


PROTOCOL = Wording(
    other="{question}",
    temporal="{question} (Tell the approximate date, by the date of the conversation.)",
    adversarial="{question} Choose the right answer: (a) {a} (b) {b}",
)
"""As the authors ask, in words of ours."""


def read_wording(given: str) -> Wording:
    """`PROTOCOL` for ``official``, or a YAML file with fields of `Wording`; what it leaves out is as in `PROTOCOL`.

    Raises:
        ConfigError: The file cannot be read, or has another field.
    """
    import yaml

    if given == "official":
        return PROTOCOL
    known = {item.name: getattr(PROTOCOL, item.name) for item in fields(Wording)}
    try:
        values = yaml.safe_load(Path(given).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(
            f"wording {given!r} cannot be read ({error}): give official, or a YAML file."
        ) from error
    if not isinstance(values, dict) or values.keys() - known.keys():
        raise ConfigError(
            f"wording {given!r} must be a YAML file with some of the fields {', '.join(known)}."
        )
    return Wording(**{**known, **values})


def is_locomo(values: Mapping[str, Any]) -> bool:
    """Whether a row has the keys of a LoCoMo conversation."""
    return {"conversation", "qa"} <= values.keys()


def read_locomo(
    path: str | Path, questions: int = QUESTIONS, wording: Wording | None = None
) -> Iterator[Task]:
    """Read ``locomo10.json`` or a file in its format.

    Args:
        path: The file.
        questions: Questions of a task, the last one of a conversation excepted.
        wording: How they are asked; the default `Wording` where not given.

    Raises:
        DataError: The file is not in this layout, or damaged.
    """
    for row in read_rows(path):
        yield from parse_locomo(row, questions, wording)


def parse_locomo(
    row: Row, questions: int = QUESTIONS, wording: Wording | None = None
) -> Iterator[Task]:
    """The tasks of one conversation: ``locomo-SAMPLE-NUMBER``."""
    sample, wording = row.text("sample_id"), wording or Wording()
    turns = _turns(row)
    places = {name: place for place, name in enumerate(turns)}
    asked = []
    for i, item in enumerate(row.objects("qa")):
        question = _question(item, f"{sample}-{i:03d}", turns, wording)
        asked.append(
            Asked(question, frozenset(places[turn] for turn in question.metadata["evidence"]))
        )
    if not asked:
        raise row.error("qa", "has no question")
    documents = [Document(date, text) for date, text in turns.values()]
    yield from grouped_tasks(LOCOMO_SOURCE, sample, asked, documents, size=questions)


def _turns(row: Row) -> dict[str, tuple[str, str]]:
    """Date and text of every turn by its id (``D1:3``), in the order of the dialogue."""
    conversation = row.check_object(
        "conversation", row.get("conversation"), "session_1, session_1_date_time, ..."
    )
    numbers = sorted(
        int(match[1]) for name in conversation.values if (match := _SESSION.fullmatch(name))
    )
    turns: dict[str, tuple[str, str]] = {}
    for number in numbers:
        date = conversation.text(f"session_{number}_date_time")
        for turn in conversation.objects(f"session_{number}"):
            text, caption = turn.values.get("text") or "", turn.values.get("blip_caption")
            if caption:
                text = f"{text} [shares an image: {caption}]".strip()
            identifier = turn.text("dia_id")
            turns[next(iter(_turn_ids(identifier)), identifier)] = (
                date,
                f"{turn.text('speaker')}: {text}",
            )
    if not turns:
        raise row.error("conversation", "has no turn")
    return turns


def _question(item: Row, identifier: str, turns: Mapping[str, Any], wording: Wording) -> Question:
    number = item.get("category")
    if not isinstance(number, int) or number not in CATEGORIES:
        raise item.error("category", f"is {number!r}, expected one of 1 to 5")
    category = CATEGORIES[number]
    evidence = item.check_texts("evidence", item.values.get("evidence", []))
    named = [turn for text in evidence for turn in _turn_ids(text) or [text.strip()]]
    metadata: dict[str, Any] = {
        "category": category,
        "evidence": [turn for turn in named if turn in turns],
    }
    if unknown := [turn for turn in named if turn not in turns]:
        # The official file has some: they are said and kept, as refusing the file would be no help.
        metadata["evidence_without_turn"] = unknown
        warnings.warn(
            f"{item.place}: field '{item.within}evidence' names {', '.join(unknown)}, which is no turn of the "
            "conversation: the oracle does not show it. Mend the row if it is yours.",
            stacklevel=2,
        )
    if category == "adversarial":
        answer = ABSTENTION
        metadata["adversarial_answer"] = str(item.values.get("adversarial_answer", ""))
    else:
        answer = item.text_or_number("answer")
        if category == "open_domain":
            answer = answer.split(";")[0].strip()
    wrong = metadata.get("adversarial_answer", "")
    text, options = wording.ask(item.text("question").strip(), category, identifier, wrong)
    if options:
        metadata["options"] = options
    return Question(text, (answer,), id=identifier, metadata=metadata)


def _turn_ids(text: str) -> list[str]:
    return [f"D{int(session)}:{int(turn)}" for session, turn in _TURN.findall(text)]
