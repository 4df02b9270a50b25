"""HotpotQA, 2WikiMultihopQA and MuSiQue: questions with paragraphs, the supporting ones gold.

Rows without all of their supporting paragraphs (HotpotQA's fullwiki setting, MuSiQue-Full's
unanswerable ones) are not `answerable`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from atommem.config import check_choice
from atommem.envs.benchmarks.rows import Benchmark, QARow, Row, Text, read_rows
from atommem.envs.task import Document, Question
from atommem.errors import ConfigError

SPLITS = ("train", "dev")
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
    found: dict[tuple[str, str], Document] = {}
    for document in documents:
        key = (document.title, document.text)
        if key not in found or document.gold:
            found[key] = document
    return tuple(found.values())


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
