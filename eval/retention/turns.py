"""Streams of texts of which somebody has said which will be needed: LoCoMo's turns, or rows of one's own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from atommem.envs.benchmarks.locomo import Wording, is_locomo, parse_locomo
from atommem.envs.benchmarks.rows import read_rows
from atommem.envs.task import Question
from atommem.errors import DataError

_AS_WRITTEN = Wording("{question}", "{question}", "{question}")
_ALL = 10**6


@dataclass(frozen=True)
class Stream:
    """Texts in their order, and what is asked when all were read.

    Attributes:
        name: Of a conversation; what is fitted on one is never tried on it.
        texts: One entry each.
        questions: Texts of the questions, where there are any.
        evidence: For each question the places of the texts that it needs.
    """

    name: str
    texts: tuple[str, ...]
    questions: tuple[str, ...]
    evidence: tuple[tuple[int, ...], ...]

    def needs(self) -> list[int]:
        """How many questions need each text, length len(texts)."""
        counts = Counter(place for places in self.evidence for place in places)
        return [counts[place] for place in range(len(self.texts))]


def read_streams(path: str | Path) -> list[Stream]:
    """LoCoMo's conversations, or rows ``{"stream": NAME, "text": ..., "needed": how many questions need it}``.

    Of LoCoMo the questions of categories 1 to 4 with evidence count: adversarial ones have no answer to keep.

    Raises:
        DataError: The file is neither, or damaged.
    """
    rows = list(read_rows(path))
    if rows and is_locomo(rows[0].values):
        return [
            _of_task(
                task.metadata["sample_id"],
                [_said(document.text) for document in task.documents],
                task.questions,
            )
            for row in rows
            for task in parse_locomo(row, _ALL, _AS_WRITTEN)
        ]
    texts: dict[str, list[tuple[str, int]]] = {}
    for row in rows:
        needed = row.values.get("needed")
        if not isinstance(needed, (bool, int)) or needed < 0:
            raise row.error("needed", f"is {needed!r}: how many questions need the text, 0 or more")
        texts.setdefault(str(row.values.get("stream", "")), []).append(
            (row.text("text"), int(needed))
        )
    if not texts:
        raise DataError(
            f"{path} has no rows: give LoCoMo's file, or rows with stream, text and needed."
        )
    return [
        Stream(
            name,
            tuple(text for text, _ in pairs),
            ("",) * sum(needed for _, needed in pairs),
            tuple((place,) for place, (_, needed) in enumerate(pairs) for _ in range(needed)),
        )
        for name, pairs in texts.items()
    ]


def _said(turn: str) -> str:
    """A turn with its speaker, an image's caption behind what was said."""
    return _CAPTION.sub(r" \1", turn).strip()


_CAPTION = re.compile(r" ?\[shares an image: (.*)\]$", re.DOTALL)


def _of_task(name: str, texts: Sequence[str], questions: Sequence[Question]) -> Stream:
    asked = [
        (question.text, tuple(sorted(question.metadata["documents"])))
        for question in questions
        if question.metadata["category"] != "adversarial" and question.metadata.get("documents")
    ]
    return Stream(
        name, tuple(texts), tuple(text for text, _ in asked), tuple(places for _, places in asked)
    )
