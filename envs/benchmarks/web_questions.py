"""Questions asked of the web, which bring no documents: GAIA, WebWalkerQA, ASearcher, WebDancer, BrowseComp-Plus.

A row's `metadata` has what its benchmark says of a question, ``category`` what reports break scores down by.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atommem.envs.benchmarks.registry import Benchmark
from atommem.envs.benchmarks.rows import QARow, Row

GAIA, WEBWALKERQA, ASEARCHER, WEBDANCER, BROWSECOMP_PLUS = (
    "gaia",
    "webwalkerqa",
    "asearcher",
    "webdancer",
    "browsecomp_plus",
)
_HIDDEN = "?"
"""GAIA's final answer where it is kept secret."""


def parse_gaia(row: Row) -> QARow:
    """A row of GAIA's ``metadata.jsonl`` (or parquet), a copy of one's own (Mialon et al., arXiv 2311.12983).

    ``file_name`` is the name of the file that a question comes with, empty for those of text alone. The test split
    keeps its answers secret: its questions can be asked, and not scored.
    """
    level = row.get("Level", "level")
    if str(level) not in ("1", "2", "3"):
        raise row.error("Level", f"is {level!r}, expected 1, 2 or 3")
    answer = row.text_or_number("Final answer", "answer").strip()
    facts = {
        "level": int(level),
        "file_name": row.values.get("file_name") or "",
        "category": f"level {level}",
    }
    answers = [] if answer == _HIDDEN else [answer]
    return _question(
        row, GAIA, row.text("task_id", "id"), row.text("Question", "question"), answers, facts
    )


def parse_webwalkerqa(row: Row) -> QARow:
    """A row of WebWalkerQA (Wu et al., arXiv 2501.07572), whatever the spelling of the fields inside ``info``."""
    names = {
        "type": ("type",),
        "difficulty": ("difficulty_level", "difficulty"),
        "lang": ("lang", "language"),
    }
    names |= {"domain": ("domain",), "sources": ("source_website", "source")}
    info = row.check_object(
        "info", row.decoded("info") if "info" in row.values else row.values
    ).values
    said = {str(name).lower(): value for name, value in info.items()}
    facts = {
        key: next((said[name] for name in given if name in said), "")
        for key, given in names.items()
    }
    facts |= {
        "root_url": row.text("root_url"),
        "category": f"{facts['lang'] or 'other'} {facts['type']}".strip(),
    }
    answers = [row.text_or_number("answer", "Answer").strip()]
    return _question(
        row, WEBWALKERQA, f"{row.number}", row.text("question", "Question"), answers, facts
    )


def parse_asearcher(row: Row) -> QARow:
    """A row of ASearcher's training and test files (Gao et al., arXiv 2508.07976).

    Its augmented answers count as right.
    """
    answers = _answers(row, "answer")
    if row.values.get("aug_answer"):
        answers += _answers(row, "aug_answer")
    facts = {"category": str(row.values.get("source") or "")}
    given = next(
        (row.values[name] for name in ("qid", "idx", "id") if row.values.get(name) is not None),
        row.number,
    )
    return _question(row, ASEARCHER, str(given), row.text("question"), answers, facts)


def parse_webdancer(row: Row) -> QARow:
    """A row of WebDancer's ``sample_qa.jsonl`` (Wu et al., arXiv 2505.22648)."""
    facts = {"category": str(row.values.get("tag") or "")}
    answers = [row.text_or_number("answer").strip()]
    return _question(row, WEBDANCER, f"{row.number}", row.text("question"), answers, facts)


def parse_browsecomp_plus(row: Row) -> QARow:
    """A row of BrowseComp-Plus (Chen et al., arXiv 2508.06600), deciphered by its own script.

    ``evidence`` has, of each document that a question needs, its names in the corpus of the benchmark: id and URL.
    """
    question = row.text("query", "question")
    if " " not in question.strip() and len(question) > 40:
        raise row.error(
            "query", "is enciphered", "Decipher the file with the script that the benchmark brings"
        )
    documents = row.decoded("evidence_docs") if "evidence_docs" in row.values else []
    if not all(
        isinstance(item, Mapping) and "docid" in item
        for item in row.check_list("evidence_docs", documents)
    ):
        raise row.error("evidence_docs", "must hold objects with 'docid'")
    names = [
        [str(document[key]) for key in ("docid", "url") if document.get(key)]
        for document in documents
    ]
    answers = [row.text_or_number("answer").strip()]
    return _question(
        row, BROWSECOMP_PLUS, str(row.get("query_id", "id")), question, answers, {"evidence": names}
    )


def _question(
    row: Row, source: str, name: str, question: str, answers: list[str], facts: dict[str, Any]
) -> QARow:
    known = tuple(dict.fromkeys(answers))
    return QARow(name, question.strip(), known, (), source, place=row.place, metadata=facts)


def _answers(row: Row, name: str) -> list[str]:
    value = row.values.get(name)
    if not isinstance(value, list):
        return [row.text_or_number(name).strip()]
    return [
        *row.check_answers(
            name, [str(item) if isinstance(item, int | float) else item for item in value]
        )
    ]


WEB_BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            GAIA,
            parse_gaia,
            {
                split: (
                    f"2023/{split}/metadata.jsonl",
                    f"{split}/metadata.jsonl",
                    f"2023/{split}/metadata*.parquet",
                )
                for split in ("validation", "test")
            },
        ),
        Benchmark(
            WEBWALKERQA,
            parse_webwalkerqa,
            {"test": ("main.jsonl", "data/main-*.parquet", "main-*.parquet")},
        ),
        Benchmark(
            ASEARCHER,
            parse_asearcher,
            {
                "train": ("ASearcher-Base-35k.jsonl", "ASearcher-LRM-35k.jsonl"),
                "test": ("test.jsonl",),
            },
        ),
        Benchmark(WEBDANCER, parse_webdancer, {"train": ("sample_qa.jsonl",)}),
        Benchmark(
            BROWSECOMP_PLUS,
            parse_browsecomp_plus,
            {"test": ("data/browsecomp_plus_decrypted.jsonl", "browsecomp_plus_decrypted.jsonl")},
        ),
    )
}
