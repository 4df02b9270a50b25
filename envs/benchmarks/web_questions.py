"""Questions of the web without documents: GAIA, WebWalkerQA, ASearcher, WebDancer, BrowseComp-Plus.

A question's `metadata` has the benchmark's attributes; reports break scores down by ``category``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct, field

from atommem.envs.benchmarks.registry import Benchmark
from atommem.envs.benchmarks.rows import QARow, Row, Text

GAIA, WEBWALKERQA, ASEARCHER, WEBDANCER, BROWSECOMP_PLUS = (
    "gaia",
    "webwalkerqa",
    "asearcher",
    "webdancer",
    "browsecomp_plus",
)
Scalar = Text | int | float
_HIDDEN = "?"
"""The final answer in GAIA's test split, which can be asked and not scored."""


class _Gaia(Struct):
    task_id: Text
    question: Text = field(name="Question")
    level: Literal[1, 2, 3, "1", "2", "3"] = field(name="Level")
    answer: Scalar = field(name="Final answer")
    file_name: str | None = None


def parse_gaia(row: Row) -> QARow:
    """Parse a row of ``metadata.jsonl`` (Mialon et al., arXiv 2311.12983), your own copy.

    ``file_name`` is the name of the file that a question comes with, "" for text alone.
    """
    found = row.parse(_Gaia)
    answers = [] if found.answer == _HIDDEN else [found.answer]
    facts = {"level": int(found.level), "file_name": found.file_name or ""}
    facts["category"] = f"level {found.level}"
    return _question(row, GAIA, found.task_id, found.question, answers, facts)


class _WebWalker(Struct):
    question: Text
    answer: Scalar
    root_url: Text
    info: dict[str, Any]


def parse_webwalkerqa(row: Row) -> QARow:
    """Parse a row of WebWalkerQA (Wu et al., arXiv 2501.07572)."""
    found = row.parse(_WebWalker, info=row.decoded("info"))
    info = {name.lower(): value for name, value in found.info.items()}  # releases differ
    names = {
        "type": ("type",),
        "difficulty": ("difficulty_level", "difficulty"),
        "lang": ("lang", "language"),
        "domain": ("domain",),
        "sources": ("source_website", "source"),
    }
    facts = {
        name: next((info[key] for key in keys if key in info), "") for name, keys in names.items()
    }
    facts["root_url"] = found.root_url
    facts["category"] = f"{facts['lang'] or 'other'} {facts['type']}".strip()
    return _question(row, WEBWALKERQA, row.number, found.question, [found.answer], facts)


class _ASearcher(Struct):
    question: Text
    answer: Scalar | list[Scalar]
    aug_answer: Scalar | list[Scalar] | None = None
    source: str | None = None
    qid: Scalar | None = None
    idx: Scalar | None = None
    id: Scalar | None = None


def parse_asearcher(row: Row) -> QARow:
    """Parse a row of ASearcher (Gao et al., arXiv 2508.07976); augmented answers count as right."""
    found = row.parse(_ASearcher)
    answers: list[Any] = []
    for given in (found.answer, found.aug_answer or []):
        answers += given if isinstance(given, list) else [given]
    names = (found.qid, found.idx, found.id, row.number)
    name = next(name for name in names if name is not None)
    facts = {"category": found.source or ""}
    return _question(row, ASEARCHER, name, found.question, answers, facts)


class _WebDancer(Struct):
    question: Text
    answer: Scalar
    tag: str | None = None


def parse_webdancer(row: Row) -> QARow:
    """Parse a row of ``sample_qa.jsonl`` (WebDancer; Wu et al., arXiv 2505.22648)."""
    found = row.parse(_WebDancer)
    facts = {"category": found.tag or ""}
    return _question(row, WEBDANCER, row.number, found.question, [found.answer], facts)


class _Evidence(Struct):
    docid: Scalar
    url: str | None = None


class _BrowseComp(Struct):
    query_id: Scalar
    query: Text
    answer: Scalar
    evidence_docs: list[_Evidence] = []


def parse_browsecomp_plus(row: Row) -> QARow:
    """Parse a row of BrowseComp-Plus (Chen et al., arXiv 2508.06600), decrypted by its script.

    ``evidence`` has the names (id and URL) of each document that the question needs.
    """
    nested = (
        {"evidence_docs": row.decoded("evidence_docs")} if "evidence_docs" in row.values else {}
    )
    found = row.parse(_BrowseComp, **nested)
    if " " not in found.query.strip() and len(found.query) > 40:
        raise row.error("query", "is encrypted: use the script that the benchmark brings")
    evidence = [[str(item.docid), *filter(None, [item.url])] for item in found.evidence_docs]
    facts = {"evidence": evidence}
    return _question(row, BROWSECOMP_PLUS, found.query_id, found.query, [found.answer], facts)


def _question(
    row: Row, source: str, name: Any, question: str, answers: list[Any], facts: dict[str, Any]
) -> QARow:
    known = tuple(dict.fromkeys(str(answer).strip() for answer in answers))
    if not answers and source != GAIA:
        raise row.error("answer", "is empty")
    return QARow(str(name), question.strip(), known, (), source, place=row.place, metadata=facts)


_FILES: dict[str, tuple[Callable[[Row], QARow], dict[str, tuple[str, ...]]]] = {
    GAIA: (
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
    WEBWALKERQA: (
        parse_webwalkerqa,
        {"test": ("main.jsonl", "data/main-*.parquet", "main-*.parquet")},
    ),
    ASEARCHER: (
        parse_asearcher,
        {
            "train": ("ASearcher-Base-35k.jsonl", "ASearcher-LRM-35k.jsonl"),
            "test": ("test.jsonl",),
        },
    ),
    WEBDANCER: (parse_webdancer, {"train": ("sample_qa.jsonl",)}),
    BROWSECOMP_PLUS: (
        parse_browsecomp_plus,
        {"test": ("data/browsecomp_plus_decrypted.jsonl", "browsecomp_plus_decrypted.jsonl")},
    ),
}
WEB_BENCHMARKS = {name: Benchmark(name, *found) for name, found in _FILES.items()}
