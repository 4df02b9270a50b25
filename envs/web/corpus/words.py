"""BM25 over passages, by tantivy."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from atommem.errors import ConfigError
from atommem.words import character_pairs, unify

Ranked = list[tuple[int, float]]  # passage numbers with scores, best first
_MAX_TERMS = 64
_WRITER_BYTES = 64_000_000


class WordIndex:
    """An index of English stems without accents, and of `character_pairs`."""

    def __init__(self, folder: Path) -> None:
        import tantivy

        fields = tantivy.SchemaBuilder()
        fields.add_unsigned_field("number", indexed=True, fast=True)
        fields.add_text_field("text", tokenizer_name="words", index_option="freq")
        self._schema = fields.build()
        filters = tantivy.Filter
        analyzer = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
        analyzer = analyzer.filter(filters.remove_long(40)).filter(filters.lowercase())
        analyzer = analyzer.filter(filters.ascii_fold()).filter(filters.stemmer("english"))
        self._analyzer = analyzer.build()
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._index = tantivy.Index(self._schema, str(folder))
            self._index.register_tokenizer("words", self._analyzer)
            self._index.config_reader("manual")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{folder}: cannot be opened ({error}). Give a corpus on a disk that can be "
                "written: readers lock it as well."
            ) from error
        self._changed = 0

    def add(self, passages: Iterable[tuple[int, str]], removed: Iterable[int] = ()) -> None:
        import tantivy

        try:
            writer = self._index.writer(_WRITER_BYTES, 1)
            for number in removed:
                writer.delete_documents_by_term("number", number)
            for number, text in passages:
                document = tantivy.Document()
                document.add_unsigned("number", number)
                document.add_text("text", _terms(text, characters=True))
                writer.add_document(document)
            writer.commit()
            writer.wait_merging_threads()
        except ValueError as error:
            raise ConfigError(
                f"{self._folder}: cannot be written ({error}). Free some space, or wait for "
                "another process that adds to it; the same addition then continues."
            ) from error

    def search(self, query: str, count: int) -> Ranked:
        """Return the passages that match any word of `query` best, by BM25 (k1 1.2, b 0.75)."""
        import tantivy

        found = self._analyzer.analyze(_terms(query))
        terms = [
            (tantivy.Occur.Should, tantivy.Query.term_query(self._schema, "text", term, "freq"))
            for term in sorted(set(found))[:_MAX_TERMS]
        ]
        if not terms:
            return []
        searcher = self._searcher()
        hits = searcher.search(tantivy.Query.boolean_query(terms), count, count=False).hits
        numbers = searcher.fast_field_values("number", [place for _, place in hits])
        pairs: Any = zip(numbers, hits, strict=True)
        ranked = [(int(number), float(score)) for number, (score, _) in pairs]
        return sorted(ranked, key=lambda hit: (-hit[1], hit[0]))

    def last(self) -> int:
        """Return the greatest number in the index; 0 if it is empty."""
        import tantivy

        everything = tantivy.Query.all_query()
        hits = self._searcher().search(everything, 1, count=False, order_by_field="number").hits
        return int(hits[0][0]) if hits else 0

    def _searcher(self) -> Any:
        changed = (self._folder / "meta.json").stat().st_mtime_ns
        if changed != self._changed:  # this process or another has added to it
            self._index.reload()
            self._changed = changed
        return self._index.searcher()


def _terms(text: str, characters: bool = False) -> str:
    return f"{unify(text)}\n{' '.join(character_pairs(text, characters))}"
