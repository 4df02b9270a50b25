"""BM25 over passages, by tantivy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atommem.envs.web.page_texts import CJK
from atommem.errors import ConfigError, DataError

if TYPE_CHECKING:
    import tantivy

Ranked = list[tuple[int, float]]
"""Numbers of passages with their scores, the best first."""
_RUN = re.compile(rf"[{CJK}]+")
_LONGEST_WORD = 40
_MOST_TERMS = 64
_WRITER_BYTES = 64_000_000
_DOCUMENTS_PER_COMMIT = 200_000


class LexicalIndex:
    """Words are folded to small letters without accents and to their English stems; scripts that put no space between
    words are indexed by pairs of characters.

    Args:
        folder: Of the index; made where it is missing.

    Raises:
        ConfigError: tantivy is not installed.
        DataError: The index is damaged.
    """

    def __init__(self, folder: Path) -> None:
        if find_spec("tantivy") is None:
            raise ConfigError(
                "a corpus needs tantivy, which is not installed: pip install 'atommem[web]'."
            )
        import tantivy

        fields = tantivy.SchemaBuilder()
        fields.add_unsigned_field("number", indexed=True, fast=True)
        fields.add_text_field("text", tokenizer_name="words", index_option="freq")
        self._schema = fields.build()
        steps = tantivy.Filter
        analyzer = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
        for step in (
            steps.remove_long(_LONGEST_WORD),
            steps.lowercase(),
            steps.ascii_fold(),
            steps.stemmer("english"),
        ):
            analyzer = analyzer.filter(step)
        self._analyzer = analyzer.build()
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        with self._whole():
            self._index = tantivy.Index(self._schema, str(folder))
        self._index.register_tokenizer("words", self._analyzer)
        self._index.config_reader("manual")
        self._written = folder / "meta.json"
        self._seen = 0

    def add(self, passages: Iterable[tuple[int, str]], gone: Iterable[int] = ()) -> None:
        """Index passages (number, text), and forget those of the numbers `gone`.

        Raises:
            ConfigError: Another process is writing.
        """
        import tantivy

        try:
            writer = self._index.writer(_WRITER_BYTES, 1)
        except ValueError as error:
            raise ConfigError(
                f"the corpus cannot be written ({error}): another process may be adding to it."
            ) from error
        for number in gone:
            writer.delete_documents_by_term("number", number)
        for place, (number, text) in enumerate(passages, start=1):
            document = tantivy.Document()
            document.add_unsigned("number", number)
            document.add_text("text", f"{text}\n{_pairs(text)}")
            writer.add_document(document)
            if place % _DOCUMENTS_PER_COMMIT == 0:
                writer.commit()
        writer.commit()
        writer.wait_merging_threads()

    def search(self, query: str, count: int) -> Ranked:
        """The passages that match any word of `query` best, by BM25 (k1 1.2, b 0.75).

        Raises:
            DataError: The index is damaged.
        """
        import tantivy

        terms = sorted(set(self._analyzer.analyze(f"{query}\n{_pairs(query)}")))[:_MOST_TERMS]
        if not terms:
            return []
        wanted = [tantivy.Query.term_query(self._schema, "text", term, "freq") for term in terms]
        return self._hits(
            tantivy.Query.boolean_query([(tantivy.Occur.Should, term) for term in wanted]), count
        )

    def last(self) -> int:
        """The greatest number in the index; 0 where it is empty."""
        import tantivy

        with self._whole():
            hits = (
                self._searcher()
                .search(tantivy.Query.all_query(), 1, count=False, order_by_field="number")
                .hits
            )
        return int(hits[0][0]) if hits else 0

    def _hits(self, query: tantivy.Query, count: int) -> Ranked:
        with self._whole():
            searcher = self._searcher()
            hits: Sequence[Any] = searcher.search(query, count, count=False).hits
            numbers = searcher.fast_field_values("number", [place for _, place in hits])
        # Ties in the order in which pages came, however the index has sorted its segments.
        ranked = [
            (int(number or 0), float(score))
            for number, (score, _) in zip(numbers, hits, strict=True)
        ]
        return sorted(ranked, key=lambda hit: (-hit[1], hit[0]))

    @contextmanager
    def _whole(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:  # a panic of Rust's is no Exception
            if not isinstance(error, ValueError) and type(error).__name__ != "PanicException":
                raise
            raise DataError(
                f"{self._folder}: cannot be read ({str(error)[:200]}): build the corpus anew."
            ) from error

    def _searcher(self) -> tantivy.Searcher:
        """Of what this process or another has written last."""
        written = self._written.stat().st_mtime_ns
        if written != self._seen:
            self._index.reload()
            self._seen = written
        return self._index.searcher()


def _pairs(text: str) -> str:
    """Every two neighbours of each run of characters without spaces; a single one as it is."""
    runs = _RUN.findall(text)
    return " ".join(run[at : at + 2] for run in runs for at in range(max(1, len(run) - 1)))
