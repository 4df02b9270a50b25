"""MuSiQue (Trivedi et al., 2022), Answerable and Full: the official JSON Lines and the same rows on Hugging Face."""

from __future__ import annotations

from atommem.envs.benchmarks.rows import QARow, Row, unique_paragraphs
from atommem.envs.task import Document

MUSIQUE = "musique"


def parse_musique(row: Row) -> QARow:
    """A row of ``musique_ans_v1.0_*.jsonl``, ``musique_full_v1.0_*.jsonl`` or the same as parquet or JSON list.

    The unanswerable rows of MuSiQue-Full come with `answerable` False; each shares its id with an answerable one.
    """
    identifier = row.text("id")
    answers = [row.text("answer"), *row.texts("answer_aliases")]
    answerable = row.flag("answerable")
    paragraphs = [
        Document(
            item.text("title"), item.text("paragraph_text").strip(), item.flag("is_supporting")
        )
        for item in row.check_objects("paragraphs", row.decoded("paragraphs"))
    ]
    gold = [document for document in paragraphs if document.gold]
    if answerable and not gold:
        raise row.error("paragraphs", "has none with is_supporting true, but the row is answerable")
    return QARow(
        id=identifier,
        question=row.text("question").strip(),
        answers=tuple(dict.fromkeys(answers)),
        paragraphs=unique_paragraphs(paragraphs),
        source=MUSIQUE,
        answerable=answerable,
        place=row.place,
        metadata={
            "type": identifier.partition("__")[0],
            "hops": len(
                row.check_list("question_decomposition", row.decoded("question_decomposition"))
            ),
            "supporting": [[document.title, None] for document in gold],
        },
    )
