"""Benchmarks of questions with paragraphs, the supporting ones gold, and of the web without any.

Rows without all of their supporting paragraphs (HotpotQA's fullwiki setting, MuSiQue-Full's
unanswerable ones) are not `answerable`. Reports break scores down by ``category``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from atommem.config import check_choice
from atommem.envs.benchmarks.rows import Benchmark, QARow, Row, Text, listed, read_rows
from atommem.envs.scoring.metrics import WEB_SOURCES, normalize
from atommem.envs.task import Document, Question
from atommem.errors import ConfigError

HOTPOTQA, TWOWIKI, MUSIQUE = "hotpotqa", "2wikimultihopqa", "musique"
_OTHER = {HOTPOTQA: ("evidences", TWOWIKI), TWOWIKI: ("level", HOTPOTQA)}
"""A field that only the other of two benchmarks with one layout has."""


class _Aliases(Struct):
    Q_id: Text
    aliases: list[str]
    demonyms: list[str]


class _Paragraph(Struct):
    title: Text
    paragraph_text: Text
    is_supporting: bool


class _MusiqueRow(Struct):
    id: Text
    question: Text
    answer: Text
    answer_aliases: list[str]
    answerable: bool
    paragraphs: list[_Paragraph]
    question_decomposition: list[Any]


def parse_hotpotqa(row: Row) -> QARow:
    """Parse a row of HotpotQA (Yang et al. 2018), of the official or Hugging Face's files."""
    return _parse(row, HOTPOTQA, "", [row.text("answer")])


def parse_twowiki(row: Row, names: Mapping[str, Sequence[str]] | None = None) -> QARow:
    """Parse a row of 2WikiMultihopQA (Ho et al. 2020).

    With `names` (`with_aliases`) aliases and demonyms of the answer count as right, as in the
    official evaluation v1.1; they are found by the row's `answer_id` (since December 2020).
    """
    answers = [row.text("answer")]
    if names is not None:
        answers += names.get(row.optional_text("answer_id"), ())  # dates, yes and no have no id
    return _parse(row, TWOWIKI, " ", answers)


def parse_musique(row: Row) -> QARow:
    """Parse a row of MuSiQue (Trivedi et al. 2022), Answerable or Full."""
    found = row.parse(_MusiqueRow)
    answers = dict.fromkeys([found.answer, *filter(str.strip, found.answer_aliases)])
    paragraphs = [
        Document(item.title, item.paragraph_text.strip(), item.is_supporting)
        for item in found.paragraphs
    ]
    if found.answerable and not any(document.gold for document in paragraphs):
        raise row.error("paragraphs", "has none with is_supporting true, but the row is answerable")
    kinds = {"type": found.id.partition("__")[0], "hops": len(found.question_decomposition)}
    question = Question(found.question.strip(), tuple(answers), found.id, kinds)
    return QARow(question, _unique(paragraphs), found.answerable, row.place)


def _parse(row: Row, source: str, separator: str, answers: list[str]) -> QARow:
    """Parse a row of HotpotQA's layout, where `separator` stands between two sentences."""
    sign, other = _OTHER[source]
    if sign in row.values:
        raise row.error(sign, f"is one of {other}, but the benchmark is {source}")
    paragraphs = _pairs(row, "context", list[str], "sentences", "content")
    titles = {title for title, _ in _pairs(row, "supporting_facts", int, "sent_id")}
    documents = [
        Document(title, separator.join(sentences).strip(), title in titles)
        for title, sentences in paragraphs
    ]
    details: dict[str, Any] = {n: row.text(n) for n in ("type", "level") if n in row.values}
    details["hops"] = len(titles)
    golds = tuple(dict.fromkeys(answers))
    question = Question(row.text("question").strip(), golds, row.text("_id", "id"), details)
    return QARow(question, _unique(documents), titles <= {*dict(paragraphs)}, row.place)


def _pairs(row: Row, name: str, kind: Any, *keys: str) -> list[tuple[str, Any]]:
    """Return title and other half of the items of a field; `keys` are names of that half."""
    pairs = row.pairs(name, row.get(name), tuple[Text, kind], *keys)
    if not pairs:
        raise row.error(name, "is empty; the official test files have no supporting facts")
    return pairs


def _unique(documents: Sequence[Document]) -> tuple[Document, ...]:
    keys = dict.fromkeys((document.title, document.text) for document in documents)
    golds = {(document.title, document.text) for document in documents if document.gold}
    return tuple(Document(*key, gold=key in golds) for key in keys)


BENCHMARKS = {
    HOTPOTQA: Benchmark(HOTPOTQA, parse_hotpotqa),
    TWOWIKI: Benchmark(TWOWIKI, parse_twowiki),
    MUSIQUE: Benchmark(MUSIQUE, parse_musique),
}


def get_benchmark(name: str) -> Benchmark:
    check_choice("benchmark", name, tuple(BENCHMARKS))
    return BENCHMARKS[name]


def with_aliases(benchmark: Benchmark, path: Path) -> Benchmark:
    """Return 2WikiMultihopQA with the names in ``id_aliases.json`` as further answers."""
    if benchmark.name != TWOWIKI:
        raise ConfigError(f"aliases={path}: only {TWOWIKI} has aliases, not {benchmark.name}.")
    rows = [row.parse(_Aliases) for row in read_rows(path)]
    names = {row.Q_id: tuple(filter(None, [*row.aliases, *row.demonyms])) for row in rows}
    return replace(benchmark, parse=partial(parse_twowiki, names=names))


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
WEB_BENCHMARKS = {pair[0]: Benchmark(*pair) for pair in zip(WEB_SOURCES, _PARSERS, strict=True)}


def listed_rows(rows: Iterable[QARow], path: str | Path) -> list[QARow]:
    """Return the rows that a published subset has, by id or text; DataError if it has no text."""
    ids: set[str] = set()
    texts: set[str] = set()
    for row in read_rows(path):
        texts.add(normalize(row.text("question", "Question", "query")))
        names = map(row.values.get, ("_id", "id", "task_id", "query_id"))
        ids |= {str(name) for name in names if name}
    return [row for row in rows if row.question.id in ids or normalize(row.question.text) in texts]
