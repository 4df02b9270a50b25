"""Candidates that are atomic and stand alone (A-MAC, section 3.1): an option, ``--split``.

The paper names the steps and gives no rules; its code has none of them. These are ours: sentences,
persons of the dialogue by name, relative days as dates, and no greetings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

import numpy as np

from papers.amac.admission import (
    THRESHOLD,
    Decisions,
    Flags,
    fit_threshold,
    published_scores,
    rouge_l,
    rouge_words,
)
from papers.experiment import Report
from papers.inputs import Conversation

_SENTENCE = re.compile(r"(?<=[.!?])\s+|;\s+|,\s+(?:and|but)\s+(?=(?:I|you|he|she|we|they|it)\b)")
_GREETING = re.compile(
    r"(?:hey|hi|hello|wow|thanks?|thank you|ok(?:ay)?|yeah|yes|yep|no|sure|bye|great|cool|awesome"
    r"|nice|congrats|take care|good (?:to (?:see|hear)|morning|night))\b",
    re.IGNORECASE,
)
_FEW = 5
"""A greeting has at most so many words."""
_CONTRACTED = {"i'm": "{me} is", "i've": "{me} has", "i'll": "{me} will", "i'd": "{me} would"}
_CONTRACTED |= {"you're": "{you} is", "you've": "{you} has", "you'll": "{you} will"}
_PERSONS = {"i": "{me}", "me": "{me}", "myself": "{me}", "my": "{me}'s", "mine": "{me}'s"}
_PERSONS |= {"you": "{you}", "yourself": "{you}", "your": "{you}'s", "yours": "{you}'s"}
_DAYS = {"yesterday": -1, "today": 0, "tonight": 0, "tomorrow": 1, "last night": -1}
_WEEKS = {"last week": -7, "this week": 0, "next week": 7}
_WORDS = re.compile(
    rf"\b(?:{'|'.join([*_CONTRACTED, *_PERSONS, *_DAYS, *_WEEKS])})\b(?!')", re.IGNORECASE
)


def split_turn(text: str, speaker: str, listener: str, day: date) -> list[str]:
    """Return the sentences of a turn that are not greetings, each to be read alone."""
    kept = [
        sentence
        for sentence in _SENTENCE.split(text.replace("\u2019", "'"))
        if sentence and not (_GREETING.match(sentence) and len(sentence.split()) <= _FEW)
    ]

    def name(found: re.Match[str]) -> str:
        word = found[0].lower()
        if word in _DAYS:
            return f"on {day + timedelta(_DAYS[word]):%d %B %Y}"
        if word in _WEEKS:
            return f"in the week of {day + timedelta(_WEEKS[word]):%d %B %Y}"
        form = _CONTRACTED.get(word) or _PERSONS[word]
        return form.format(me=speaker or "I", you=listener or "you")

    return [_WORDS.sub(name, sentence) for sentence in kept]


def split_conversation(conversation: Conversation) -> list[list[str]]:
    """Return the units of each turn."""
    people = list(dict.fromkeys(conversation.speakers))
    listeners = [
        next((one for one in people if one != speaker), "") for speaker in conversation.speakers
    ]
    turns = zip(
        conversation.texts, conversation.speakers, listeners, conversation.days, strict=True
    )
    return [split_turn(*turn) for turn in turns]


def split_table(report: Report, conversations: Sequence[Conversation]) -> None:
    """Add admission of units by the published weights; the turn of an admitted unit is admitted.

    A unit is supported by its own turn (Support of equation 2); U is .5, N 1, R 0 (code).
    """
    needed: list[Flags] = [np.array(one.needed) for one in conversations]
    truth, units = np.concatenate(needed), [split_conversation(one) for one in conversations]

    def best(turn: str, own: Sequence[str]) -> float:
        support = np.array([rouge_l(rouge_words(unit), rouge_words(turn)) for unit in own])
        return float(published_scores(own, support).max()) if own else -1.0

    scores = {
        "turns": [published_scores(one.texts) for one in conversations],
        "units": [
            np.array([best(*pair) for pair in zip(one.texts, split, strict=True)])
            for one, split in zip(conversations, units, strict=True)
        ],
    }
    numbers = {"turns": len(truth), "units": sum(len(own) for split in units for own in split)}
    rows: list[list[Any]] = []
    for name, found in scores.items():
        published = [one >= THRESHOLD for one in found]
        for label, flags in (("published", published), ("fitted", fit_threshold(found, needed))):
            cells = Decisions.of(np.concatenate(flags), truth).cells()
            rows.append([name, label, numbers[name], *cells])
    columns = ["candidates", "threshold", "number", "turns admitted", "right", "P", "R", "F1"]
    report.table("Atomic units that stand alone (--split)", columns, rows)
