"""Questions that a training pool shares with an evaluation file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from atommem.envs.benchmarks.memagent import is_memagent, parse_memagent
from atommem.envs.benchmarks.rows import QARow, Row, read_rows
from atommem.envs.scoring.metrics import normalize
from atommem.errors import DataError


@dataclass
class AskedQuestions:
    """The questions of an evaluation file, by id and by normalised text, and the rows found to share one."""

    path: Path
    ids: frozenset[str]
    texts: frozenset[str]
    shared: list[QARow] = field(default_factory=list)

    def has(self, row: QARow) -> bool:
        """Whether `row` asks one of them."""
        return row.id in self.ids or normalize(row.question) in self.texts

    def note(self, row: QARow) -> bool:
        """Whether `row` asks one of them, which is noted."""
        if self.has(row):
            self.shared.append(row)
            return True
        return False

    def check(self) -> None:
        """Raise if rows were found to share a question.

        Raises:
            DataError: The message names the file, how many are shared, and some of them.
        """
        if self.shared:
            some = "; ".join(f"{row.id}: {row.question}" for row in self.shared[:3])
            raise DataError(
                f"{self.path}: has {len(self.shared)} questions of the input, too ({some}"
                f"{'; ...' if len(self.shared) > 3 else ''}). Build from another split, or leave these questions out "
                "with --drop_overlap."
            )


def read_asked(path: str | Path) -> AskedQuestions:
    """Read the questions of a file: a benchmark's, a task file, MemAgent's, or any rows with a field `question`.

    Raises:
        DataError: The file is damaged, or a row has no question.
    """
    ids: set[str] = set()
    texts: set[str] = set()
    for row in read_rows(path):
        for identifier, text in _questions(row):
            texts.add(normalize(text))
            if identifier:
                ids.add(identifier)
    if not texts:
        raise DataError(f"{path}: has no questions.")
    return AskedQuestions(Path(path), frozenset(ids), frozenset(texts))


def _questions(row: Row) -> list[tuple[str, str]]:
    """Id (or "") and text of the row's questions."""
    if is_memagent(row.values):
        # Ids of these are row numbers: they say nothing about the benchmark's questions.
        return [("", question.text) for question in parse_memagent(row).questions]
    if "questions" in row.values:
        items = row.list_of("questions")
        if not all(isinstance(item, dict) for item in items):
            raise row.error("questions", "must hold objects with 'text' and 'id'")
        return [
            (item.get("id") or "", row.check_text("questions.text", item.get("text")))
            for item in items
        ]
    name = next(
        (row.values[key] for key in ("_id", "id", "task_id", "query_id") if row.values.get(key)), ""
    )
    return [(str(name), row.text("question", "Question", "query"))]
