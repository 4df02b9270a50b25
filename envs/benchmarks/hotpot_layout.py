"""The row layout that HotpotQA and 2WikiMultihopQA share, in the official files and on Hugging Face.

`context` and `supporting_facts` come as lists of pairs (official), as columns (Hugging Face:
``{"title": [...], "sentences": [...]}``), as lists of objects, or as any of these in a JSON string. Sentences are
called `sentences` or `content`, sentence indices `sent_id`.
"""

from __future__ import annotations

from typing import Any

from atommem.envs.benchmarks.rows import QARow, Row, unique_paragraphs
from atommem.envs.task import Document


def parse_row(row: Row, source: str, separator: str, answers: tuple[str, ...]) -> QARow:
    """Turn a row into a `QARow`.

    Args:
        separator: What stands between two sentences of a paragraph (HotpotQA's keep their leading space).
        answers: The row's answer and its aliases.

    Raises:
        DataError: A field is missing or of the wrong form.
    """
    _check_benchmark(row, source)
    paragraphs = _paragraphs(row)
    facts = _supporting_facts(row)
    titles = {title for title, _ in facts}
    lengths: dict[str, int] = {}
    for title, sentences in paragraphs:
        lengths[title] = max(lengths.get(title, 0), len(sentences))
    metadata: dict[str, Any] = {name: row.text(name) for name in ("type", "level") if name in row.values}
    metadata |= {
        "hops": len(titles),
        "supporting": [[title, index if 0 <= index < lengths.get(title, 0) else None] for title, index in facts],
    }
    return QARow(
        id=row.text("_id", "id"),
        question=row.text("question").strip(),
        answers=answers,
        paragraphs=unique_paragraphs(
            [Document(title, separator.join(sentences).strip(), title in titles) for title, sentences in paragraphs]
        ),
        source=source,
        answerable=titles <= lengths.keys(),
        metadata=metadata,
        place=row.place,
    )


_ONLY = {"hotpotqa": ("level", "bridge"), "2wikimultihopqa": ("evidences", "compositional", "inference")}
"""Fields and types of questions that one of the two has, and the other has not."""


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
    pairs = _pairs(row, "context", (("title",), ("sentences", "content")))
    if not pairs:
        raise row.error("context", "is empty")
    paragraphs = []
    for i, (title, sentences) in enumerate(pairs):
        name = f"context[{i}]"
        for j, sentence in enumerate(row.check_list(f"{name} sentences", sentences)):
            if not isinstance(sentence, str):
                raise row.error(f"{name} sentences", f"has {sentence!r} at {j}, expected a string")
        paragraphs.append((row.check_text(f"{name} title", title), sentences))
    return paragraphs


def _supporting_facts(row: Row) -> list[tuple[str, int]]:
    """The row's supporting facts: title and sentence index (from 0)."""
    facts = []
    for i, (title, index) in enumerate(_pairs(row, "supporting_facts", (("title",), ("sent_id",)))):
        name = f"supporting_facts[{i}]"
        if not isinstance(index, int):
            raise row.error(name, f"has the sentence index {index!r}, expected a whole number")
        facts.append((row.check_text(f"{name} title", title), index))
    if not facts:
        raise row.error("supporting_facts", "is empty (the official test files have none: use train or dev)")
    return facts


def _pairs(row: Row, name: str, keys: tuple[tuple[str, ...], tuple[str, ...]]) -> list[tuple[Any, Any]]:
    """The pairs of the field `name` in any of its forms; `keys` are the names that either half may have."""
    value = row.decoded(name)
    if isinstance(value, dict):
        first, second = (row.check_list(f"{name}.{group[0]}", _named(row, name, value, group)) for group in keys)
        if len(first) != len(second):
            raise row.error(name, f"has {len(first)} titles but {len(second)} {keys[1][0]}")
        return list(zip(first, second, strict=True))
    pairs = []
    for i, item in enumerate(row.check_list(name, value)):
        if isinstance(item, dict):
            pairs.append((_named(row, f"{name}[{i}]", item, keys[0]), _named(row, f"{name}[{i}]", item, keys[1])))
        elif isinstance(item, list) and len(item) == 2:
            pairs.append((item[0], item[1]))
        else:
            raise row.error(f"{name}[{i}]", f"is {item!r}, expected a pair")
    return pairs


def _named(row: Row, name: str, values: dict[str, Any], keys: tuple[str, ...]) -> Any:
    for key in keys:
        if key in values:
            return values[key]
    raise row.error(name, f"has no {' or '.join(map(repr, keys))}")
