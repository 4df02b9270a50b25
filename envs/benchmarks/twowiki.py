"""2WikiMultihopQA (Ho et al., 2020): the official JSON files, the Hugging Face layouts, and ``id_aliases.json``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from atommem.envs.benchmarks.hotpot_layout import parse_row
from atommem.envs.benchmarks.rows import QARow, Row, read_rows
from atommem.errors import DataError

SOURCE = "2wikimultihopqa"


def read_twowiki(path: str | Path, aliases: str | Path | None = None) -> Iterator[QARow]:
    """Read ``train.json``, ``dev.json`` or a Hugging Face parquet or JSONL file.

    Args:
        path: The file.
        aliases: ``id_aliases.json`` of the same release. With it an answer's aliases and demonyms count as right
            too, as in the official evaluation script v1.1; they are found by the row's `answer_id`.

    Raises:
        DataError: A file is not in one of these layouts, or damaged; or aliases are given but the rows have no
            `answer_id` (releases before December 2020).
    """
    names = read_aliases(aliases) if aliases is not None else {}
    for row in read_rows(path):
        answers = [row.text("answer")]
        if aliases is not None:
            answers += names.get(_answer_id(row), ())
        # 2Wiki's sentences, unlike HotpotQA's, come without the space between them.
        yield parse_row(row, SOURCE, separator=" ", answers=tuple(dict.fromkeys(answers)))


def read_aliases(path: str | Path) -> dict[str, tuple[str, ...]]:
    """Read ``id_aliases.json`` (JSON Lines): Wikidata id -> aliases and demonyms.

    Raises:
        DataError: A row lacks `Q_id`, `aliases` or `demonyms`.
    """
    names: dict[str, tuple[str, ...]] = {}
    for row in read_rows(path):
        both = [*row.texts("aliases", row.get("aliases")), *row.texts("demonyms", row.get("demonyms"))]
        names[row.text("Q_id")] = tuple(dict.fromkeys(both))
    if not names:
        raise DataError(f"{path}: has no rows; expected one object a line with Q_id, aliases and demonyms.")
    return names


def _answer_id(row: Row) -> str:
    """The Wikidata id of the answer, or "" (dates, yes and no have none)."""
    if "answer_id" not in row.values:
        raise row.error(
            "answer_id", "is missing, so that aliases cannot be found; use the release with ids, or give no aliases"
        )
    return row.values["answer_id"] or ""
