"""HotpotQA (Yang et al., 2018; distractor setting) and 2WikiMultihopQA (Ho et al., 2020), whose rows have one layout.

`context` and `supporting_facts` come as lists of pairs (in the official files), as columns (on Hugging Face:
``{"title": [...], "sentences": [...]}``), as lists of objects, or as any of these in a JSON string. Sentences are
called `sentences` or `content`, sentence indices `sent_id`.

A row whose paragraphs lack a supporting one (as in HotpotQA's fullwiki setting) is not `answerable`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atommem.envs.benchmarks.rows import QARow, Row, read_rows, unique_paragraphs
from atommem.envs.task import Document
from atommem.errors import DataError

HOTPOTQA, TWOWIKI = "hotpotqa", "2wikimultihopqa"
_ONLY = {HOTPOTQA: ("level", "bridge"), TWOWIKI: ("evidences", "compositional", "inference")}
"""Fields and types of questions that one of the two has, and the other has not."""


def parse_hotpotqa(row: Row) -> QARow:
    """A row of ``hotpot_train_v1.1.json``, ``hotpot_dev_distractor_v1.json`` or Hugging Face's files."""
    return _parse(row, HOTPOTQA, "", [row.text("answer")])


def parse_twowiki(row: Row, names: Mapping[str, Sequence[str]] | None = None) -> QARow:
    """A row of 2WikiMultihopQA's ``train.json``, ``dev.json`` or of Hugging Face's files.

    With `names` (`read_aliases`) an answer's aliases and demonyms count as right too, as in the official evaluation
    script v1.1; they are found by the row's `answer_id`, which releases before December 2020 do not have.
    """
    answers = [row.text("answer")]
    if names is not None:
        answers += names.get(_answer_id(row), ())
    # Its sentences, unlike HotpotQA's, come without the space between them.
    return _parse(row, TWOWIKI, " ", answers)


def read_aliases(path: str | Path) -> dict[str, tuple[str, ...]]:
    """Read ``id_aliases.json`` (JSON Lines): Wikidata id -> aliases and demonyms.

    Raises:
        DataError: A row lacks `Q_id`, `aliases` or `demonyms`.
    """
    names: dict[str, tuple[str, ...]] = {}
    for row in read_rows(path):
        both = [*row.texts("aliases"), *row.texts("demonyms")]
        names[row.text("Q_id")] = tuple(dict.fromkeys(both))
    if not names:
        raise DataError(
            f"{path}: has no rows; expected one object a line with Q_id, aliases and demonyms."
        )
    return names


def _answer_id(row: Row) -> str:
    """The Wikidata id of the answer, or "" (dates, yes and no have none)."""
    if "answer_id" not in row.values:
        raise row.error(
            "answer_id",
            "is missing, so that aliases cannot be found; use the release with ids, or give no aliases",
        )
    return row.values["answer_id"] or ""


def _parse(row: Row, source: str, separator: str, answers: list[str]) -> QARow:
    """`separator` stands between two sentences of a paragraph."""
    _check_benchmark(row, source)
    paragraphs = _paragraphs(row)
    facts = _supporting_facts(row)
    titles = {title for title, _ in facts}
    lengths: dict[str, int] = {}
    for title, sentences in paragraphs:
        lengths[title] = max(lengths.get(title, 0), len(sentences))
    metadata: dict[str, Any] = {
        name: row.text(name) for name in ("type", "level") if name in row.values
    }
    metadata |= {
        "hops": len(titles),
        "supporting": [
            [title, index if 0 <= index < lengths.get(title, 0) else None] for title, index in facts
        ],
    }
    return QARow(
        id=row.text("_id", "id"),
        question=row.text("question").strip(),
        answers=tuple(dict.fromkeys(answers)),
        paragraphs=unique_paragraphs(
            [
                Document(title, separator.join(sentences).strip(), title in titles)
                for title, sentences in paragraphs
            ]
        ),
        source=source,
        answerable=titles <= lengths.keys(),
        metadata=metadata,
        place=row.place,
    )


def _check_benchmark(row: Row, source: str) -> None:
    """Raise if `row` is of the other benchmark: their layouts are the same, their scores are not."""
    for other, signs in _ONLY.items():
        found = [sign for sign in signs if sign in row.values or row.values.get("type") == sign]
        if other != source and found and not any(sign in row.values for sign in _ONLY[source]):
            raise row.error(
                found[0] if found[0] in row.values else "type",
                f"is one of {other}, but the benchmark is {source}",
                f"Give --benchmark {other}, or another file",
            )


def _paragraphs(row: Row) -> list[tuple[str, list[str]]]:
    """The row's paragraphs: title and sentences."""
    pairs = _pairs(row, "context", ("title",), ("sentences", "content"))
    if not pairs:
        raise row.error("context", "is empty")
    paragraphs = []
    for i, (title, sentences) in enumerate(pairs):
        row.check_texts(f"context[{i}] sentences", sentences)
        paragraphs.append((row.check_text(f"context[{i}] title", title), sentences))
    return paragraphs


def _supporting_facts(row: Row) -> list[tuple[str, int]]:
    """The row's supporting facts: title and sentence index (from 0)."""
    facts = []
    for i, (title, index) in enumerate(_pairs(row, "supporting_facts", ("title",), ("sent_id",))):
        name = f"supporting_facts[{i}]"
        if not isinstance(index, int):
            raise row.error(name, f"has the sentence index {index!r}, expected a whole number")
        facts.append((row.check_text(f"{name} title", title), index))
    if not facts:
        raise row.error(
            "supporting_facts", "is empty (the official test files have none: use train or dev)"
        )
    return facts


def _pairs(row: Row, name: str, *keys: tuple[str, ...]) -> list[tuple[Any, Any]]:
    """The pairs of the field `name` in any of its forms; `keys` are the names that either half may have."""
    value = row.decoded(name)
    if isinstance(value, dict):
        columns = row.check_object(name, value)
        first, second = (columns.check_list(names[0], columns.get(*names)) for names in keys)
        if len(first) != len(second):
            raise row.error(name, f"has {len(first)} titles but {len(second)} {keys[1][0]}")
        return list(zip(first, second, strict=True))
    pairs = []
    for i, item in enumerate(row.check_list(name, value)):
        if isinstance(item, list) and len(item) == 2:
            pairs.append((item[0], item[1]))
        else:
            named = row.check_object(f"{name}[{i}]", item, "a pair")
            pairs.append((named.get(*keys[0]), named.get(*keys[1])))
    return pairs
