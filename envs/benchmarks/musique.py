"""MuSiQue (Trivedi et al., 2022), Answerable and Full: the official JSON Lines and the same rows on Hugging Face."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atommem.envs.benchmarks.rows import QARow, Row, read_rows, unique_paragraphs
from atommem.envs.task import Document

SOURCE = "musique"


def read_musique(path: str | Path) -> Iterator[QARow]:
    """Read ``musique_ans_v1.0_*.jsonl``, ``musique_full_v1.0_*.jsonl`` or the same rows as parquet or JSON list.

    The unanswerable rows of MuSiQue-Full come with `answerable` False; each shares its id with an answerable one.

    Raises:
        DataError: The file is not in this layout, or damaged.
    """
    for row in read_rows(path):
        yield _parse(row)


def _parse(row: Row) -> QARow:
    identifier = row.text("id")
    answers = [row.text("answer"), *row.texts("answer_aliases", row.get("answer_aliases"))]
    answerable = row.get("answerable")
    if not isinstance(answerable, bool):
        raise row.error("answerable", f"is {answerable!r}, expected true or false")
    paragraphs = _paragraphs(row)
    gold = [document for document in paragraphs if document.gold]
    if answerable and not gold:
        raise row.error("paragraphs", "has none with is_supporting true, but the row is answerable")
    return QARow(
        id=identifier,
        question=row.text("question").strip(),
        answers=tuple(dict.fromkeys(answers)),
        paragraphs=unique_paragraphs(paragraphs),
        source=SOURCE,
        answerable=answerable,
        place=row.place,
        metadata={
            "type": identifier.partition("__")[0],
            "hops": len(row.check_list("question_decomposition", row.decoded("question_decomposition"))),
            "supporting": [[document.title, None] for document in gold],
        },
    )


def _paragraphs(row: Row) -> list[Document]:
    documents = []
    for i, item in enumerate(row.check_list("paragraphs", row.decoded("paragraphs"))):
        name = f"paragraphs[{i}]"
        if not isinstance(item, dict):
            raise row.error(name, f"is {item!r}, expected an object")
        documents.append(
            Document(
                title=row.check_text(f"{name}.title", item.get("title")),
                text=row.check_text(f"{name}.paragraph_text", item.get("paragraph_text")).strip(),
                gold=_flag(row, f"{name}.is_supporting", item.get("is_supporting")),
            )
        )
    return documents


def _flag(row: Row, name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise row.error(name, f"is {value!r}, expected true or false")
    return value
