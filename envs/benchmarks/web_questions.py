"""Questions of the web without documents: GAIA, WebWalkerQA, ASearcher, WebDancer, BrowseComp-Plus.

A question's `metadata` has the benchmark's attributes; reports break scores down by ``category``.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from atommem.envs.benchmarks.rows import Benchmark, QARow, Row, Text, listed, read_rows
from atommem.envs.scoring.metrics import WEB_SOURCES, normalize
from atommem.envs.task import Question

_HIDDEN = "?"  # the final answer in GAIA's test split, which can be asked and not scored


def parse_gaia(row: Row) -> QARow:
    """Parse a row of ``metadata.jsonl`` (Mialon et al., arXiv 2311.12983), your own copy.

    ``file_name`` is the name of the file that a question comes with, "" for text alone.
    """
    level = int(row.convert("Level", row.get("Level"), Literal[1, 2, 3, "1", "2", "3"]))
    answers = [] if row.get("Final answer") == _HIDDEN else _answers(row, "Final answer")
    facts = {"level": level, "file_name": row.optional_text("file_name")}
    facts["category"] = f"level {level}"
    return _question(row, row.text("task_id"), row.text("Question"), answers, facts)


def parse_webwalkerqa(row: Row) -> QARow:
    """Parse a row of WebWalkerQA (Wu et al., arXiv 2501.07572)."""
    given = row.convert("info", row.get("info"), dict[str, Any])
    info = {name.lower(): value for name, value in given.items()}  # releases differ
    facts = {
        "type": info.get("type", ""),
        "difficulty": info.get("difficulty_level", info.get("difficulty", "")),
        "lang": info.get("lang", info.get("language", "")),
        "domain": info.get("domain", ""),
        "root_url": row.text("root_url"),
    }
    facts["category"] = f"{facts['lang'] or 'other'} {facts['type']}".strip()
    answers = _answers(row, "answer")
    return _question(row, row.number, row.text("question"), answers, facts)


def parse_asearcher(row: Row) -> QARow:
    """Parse a row of ASearcher (Gao et al., arXiv 2508.07976); augmented answers count as right."""
    answers = _answers(row, "answer")
    if row.values.get("aug_answer"):
        answers += _answers(row, "aug_answer")
    name = next((row.values[key] for key in ("qid", "idx", "id") if key in row.values), row.number)
    facts = {"category": row.optional_text("source")}
    return _question(row, name, row.text("question"), answers, facts)


def parse_webdancer(row: Row) -> QARow:
    """Parse a row of ``sample_qa.jsonl`` (WebDancer; Wu et al., arXiv 2505.22648)."""
    answers, facts = _answers(row, "answer"), {"category": row.optional_text("tag")}
    return _question(row, row.number, row.text("question"), answers, facts)


class _Evidence(Struct):
    docid: Text
    url: str | None = None


def parse_browsecomp_plus(row: Row) -> QARow:
    """Parse a row of BrowseComp-Plus (Chen et al., arXiv 2508.06600), decrypted by its script.

    ``evidence`` has the names (id and URL) of each document that the question needs.
    """
    query = row.text("query")
    if " " not in query.strip() and len(query) > 40:
        raise row.error("query", "is encrypted: use the script that the benchmark brings")
    documents = row.values.get("evidence_docs", [])
    evidence = [
        [str(item.docid), *filter(None, [item.url])]
        for item in row.convert("evidence_docs", documents, list[_Evidence])
    ]
    name, answers = row.get("query_id"), _answers(row, "answer")
    return _question(row, name, query, answers, {"evidence": evidence})


def _answers(row: Row, name: str) -> list[str]:
    return row.convert(name, listed(row.get(name)), Annotated[list[Text], Meta(min_length=1)])


def _question(row: Row, name: Any, text: str, answers: list[str], facts: dict[str, Any]) -> QARow:
    known = tuple(dict.fromkeys(map(str.strip, answers)))
    return QARow(Question(text.strip(), known, str(name), facts), place=row.place)


_PARSERS = (parse_gaia, parse_webwalkerqa, parse_asearcher, parse_webdancer, parse_browsecomp_plus)
WEB_BENCHMARKS = {
    name: Benchmark(name, parse) for name, parse in zip(WEB_SOURCES, _PARSERS, strict=True)
}


def listed_rows(rows: Iterable[QARow], path: str | Path) -> list[QARow]:
    """Return the rows that a published subset has, by id or text; DataError if it has no text."""
    ids: set[str] = set()
    texts: set[str] = set()
    for row in read_rows(path):
        texts.add(normalize(row.text("question", "Question", "query")))
        names = map(row.values.get, ("_id", "id", "task_id", "query_id"))
        ids |= {str(name) for name in names if name}
    return [row for row in rows if row.question.id in ids or normalize(row.question.text) in texts]
