"""Questions asked of the web, which bring no documents: GAIA, WebWalkerQA, ASearcher, WebDancer, BrowseComp-Plus.

A row's `metadata` has what its benchmark says of a question, ``category`` what reports break scores down by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from atommem.envs.benchmarks.registry import Benchmark
from atommem.envs.benchmarks.rows import QARow, Row, read_rows
from atommem.errors import ConfigError

GAIA, WEBWALKERQA, ASEARCHER, WEBDANCER, BROWSECOMP_PLUS = (
    "gaia",
    "webwalkerqa",
    "asearcher",
    "webdancer",
    "browsecomp_plus",
)
_HIDDEN = "?"
"""GAIA's final answer where it is kept secret."""


def read_gaia(path: str | Path) -> Iterator[QARow]:
    """Read GAIA's ``metadata.jsonl`` (or parquet), a copy of one's own (Mialon et al., arXiv 2311.12983).

    ``file_name`` is the name of the file that a question comes with, empty for those of text alone. The test split
    keeps its answers secret: its questions can be asked, and not scored.

    Raises:
        DataError: The file is not in this layout, or damaged.
    """
    for row in read_rows(path):
        level = row.get("Level", "level")
        if str(level) not in ("1", "2", "3"):
            raise row.error("Level", f"is {level!r}, expected 1, 2 or 3")
        answer = _answer_text(row, "Final answer", "answer")
        facts = {"level": int(level), "file_name": row.values.get("file_name") or "", "category": f"level {level}"}
        answers = () if answer == _HIDDEN else (answer,)
        yield _question(row, GAIA, row.text("task_id", "id"), row.text("Question", "question"), answers, facts)


def read_webwalkerqa(path: str | Path) -> Iterator[QARow]:
    """Read WebWalkerQA (Wu et al., arXiv 2501.07572), whatever the spelling of the fields inside ``info``.

    Raises:
        DataError: The file is not in this layout, or damaged.
    """
    names = {"type": ("type",), "difficulty": ("difficulty_level", "difficulty"), "lang": ("lang", "language")}
    names |= {"domain": ("domain",), "sources": ("source_website", "source")}
    for row in read_rows(path):
        info = row.decoded("info") if "info" in row.values else row.values
        if not isinstance(info, Mapping):
            raise row.error("info", f"is {info!r}, expected an object")
        said = {str(name).lower(): value for name, value in info.items()}
        facts = {key: next((said[name] for name in given if name in said), "") for key, given in names.items()}
        facts |= {"root_url": row.text("root_url"), "category": f"{facts['lang'] or 'other'} {facts['type']}".strip()}
        answers = (_answer_text(row, "answer", "Answer"),)
        yield _question(row, WEBWALKERQA, f"{row.number}", row.text("question", "Question"), answers, facts)


def read_asearcher(path: str | Path) -> Iterator[QARow]:
    """Read ASearcher's training and test files (Gao et al., arXiv 2508.07976); its augmented answers count as right.

    Raises:
        DataError: The file is not in this layout, or damaged.
    """
    for row in read_rows(path):
        answers = _answers(row, "answer")
        if row.values.get("aug_answer"):
            answers += _answers(row, "aug_answer")
        facts = {"category": str(row.values.get("source") or "")}
        given = next(
            (row.values[name] for name in ("qid", "idx", "id") if row.values.get(name) is not None), row.number
        )
        yield _question(row, ASEARCHER, str(given), row.text("question"), tuple(dict.fromkeys(answers)), facts)


def read_webdancer(path: str | Path) -> Iterator[QARow]:
    """Read WebDancer's ``sample_qa.jsonl`` (Wu et al., arXiv 2505.22648).

    Raises:
        DataError: The file is not in this layout, or damaged.
    """
    for row in read_rows(path):
        facts = {"category": str(row.values.get("tag") or "")}
        answers = (_answer_text(row, "answer"),)
        yield _question(row, WEBDANCER, f"{row.number}", row.text("question"), answers, facts)


def read_browsecomp_plus(path: str | Path) -> Iterator[QARow]:
    """Read BrowseComp-Plus (Chen et al., arXiv 2508.06600), deciphered by its own script.

    ``evidence`` has, of each document that a question needs, its names in the corpus of the benchmark: id and URL.

    Raises:
        DataError: The file is not in this layout, damaged, or still enciphered.
    """
    for row in read_rows(path):
        question = row.text("query", "question")
        if " " not in question.strip() and len(question) > 40:
            raise row.error("query", "is enciphered", "Decipher the file with the script that the benchmark brings")
        documents = (
            row.check_list("evidence_docs", row.decoded("evidence_docs")) if "evidence_docs" in row.values else []
        )
        if not all(isinstance(document, Mapping) and "docid" in document for document in documents):
            raise row.error("evidence_docs", "must hold objects with 'docid'")
        names = [[str(document[key]) for key in ("docid", "url") if document.get(key)] for document in documents]
        facts = {"evidence": names}
        answers = (_answer_text(row, "answer"),)
        yield _question(row, BROWSECOMP_PLUS, str(row.get("query_id", "id")), question, answers, facts)


def _question(
    row: Row, source: str, name: str, question: str, answers: tuple[str, ...], facts: dict[str, Any]
) -> QARow:
    return QARow(name, question.strip(), answers, (), source, place=row.place, metadata=facts)


def _answer_text(row: Row, *names: str) -> str:
    """The answer, which may be a number."""
    value = row.get(*names)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if number else row.check_text(names[0], value).strip()


def _answers(row: Row, name: str) -> list[str]:
    value = row.values.get(name)
    if not isinstance(value, list):
        return [_answer_text(row, name)]
    texts = row.texts(name, [str(item) if isinstance(item, int | float) else item for item in value])
    if not texts:
        raise row.error(name, "is empty")
    return texts


WEB_BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            GAIA,
            read_gaia,
            {
                split: (f"2023/{split}/metadata.jsonl", f"{split}/metadata.jsonl", f"2023/{split}/metadata*.parquet")
                for split in ("validation", "test")
            },
        ),
        Benchmark(WEBWALKERQA, read_webwalkerqa, {"test": ("main.jsonl", "data/main-*.parquet", "main-*.parquet")}),
        Benchmark(
            ASEARCHER,
            read_asearcher,
            {"train": ("ASearcher-Base-35k.jsonl", "ASearcher-LRM-35k.jsonl"), "test": ("test.jsonl",)},
        ),
        Benchmark(WEBDANCER, read_webdancer, {"train": ("sample_qa.jsonl",)}),
        Benchmark(
            BROWSECOMP_PLUS,
            read_browsecomp_plus,
            {"test": ("data/browsecomp_plus_decrypted.jsonl", "browsecomp_plus_decrypted.jsonl")},
        ),
    )
}


def get_web_benchmark(name: str, split: str) -> Benchmark:
    """The benchmark called `name`, if it has this split.

    Raises:
        ConfigError: There is no such benchmark, or it has not.
    """
    if name not in WEB_BENCHMARKS:
        raise ConfigError(f"benchmark is {name!r}; those of the web are {', '.join(WEB_BENCHMARKS)}.")
    if split not in WEB_BENCHMARKS[name].files:
        raise ConfigError(f"split is {split!r}; {name} has {', '.join(WEB_BENCHMARKS[name].files)}.")
    return WEB_BENCHMARKS[name]
