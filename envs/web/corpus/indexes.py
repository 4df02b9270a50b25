"""Indexes of passages: BM25 by tantivy; vectors on disk by FAISS.

Vectors are searched exactly below 100,000, by an inverted file above.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

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

        terms = [
            (tantivy.Occur.Should, tantivy.Query.term_query(self._schema, "text", term, "freq"))
            for term in sorted(set(self._analyzer.analyze(_terms(query))))[:_MAX_TERMS]
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


Array = npt.NDArray[np.float32]
FLAT_BELOW = 100_000
TARGET_RECALL = 0.97
"""Recall@10 of the sample that chooses `nprobe`, with a margin over the promised .95."""
_SAMPLED_QUERIES = 200
_MAX_TAIL = 0.1
_TRAINING_ROWS = 64  # per list
_BATCH = 50_000


class VectorIndex:
    """Unit vectors in a file, and an index of them above `FLAT_BELOW` rows.

    Row i is passage i + 1, of zeros if the passage was removed before it was embedded. The index
    (``IndexIVFScalarQuantizer``, 16-bit floats, 2 sqrt(n) lists) is rebuilt when a tenth of the
    rows is newer; newer rows are searched exactly. Both files are memory-mapped. Building holds
    2 bytes a dimension and row in memory.
    """

    def __init__(self, folder: Path, dim: int) -> None:
        self._folder = folder
        self._dim = dim
        self._path = folder / "vectors.f32"
        self._loaded: tuple[Path | None, faiss.Index | None] = (None, None)
        self._path.touch()

    def __len__(self) -> int:
        return self._path.stat().st_size // (4 * self._dim)

    def append(self, numbers: Sequence[int], vectors: Array) -> None:
        """Write the vectors of passages above ``len``; a partly written row is overwritten."""
        start = len(self)
        rows = np.zeros((numbers[-1] - start, self._dim), dtype=np.float32)
        rows[np.array(numbers) - start - 1] = vectors
        with self._path.open("r+b") as file:
            file.seek(start * 4 * self._dim)
            file.write(rows.tobytes())

    def build(self) -> float | None:
        """Build the index if it is needed and missing or old.

        Returns its recall@10 on sampled rows against exact search; None if nothing was built.
        """
        rows = self._rows()
        _, covered = self._index_file()
        if len(rows) < FLAT_BELOW or len(rows) - covered <= _MAX_TAIL * len(rows):
            return None
        lists = int(2 * len(rows) ** 0.5)
        kind, metric = f"IVF{lists},SQfp16", faiss.METRIC_INNER_PRODUCT
        index: Any = faiss.index_factory(self._dim, kind, metric)
        index.cp.niter, index.cp.max_points_per_centroid = 10, _TRAINING_ROWS
        rng = np.random.default_rng(0)
        size = min(len(rows), _TRAINING_ROWS * lists)
        index.train(rows[np.sort(rng.choice(len(rows), size, replace=False))])
        for start in range(0, len(rows), _BATCH):
            part = rows[start : start + _BATCH]
            present = np.flatnonzero(part.any(axis=1))
            index.add_with_ids(part[present], start + present)
        recall = _choose_nprobe(index, rows, rng)
        written, old = self._folder / "vectors.tmp", [*self._folder.glob("vectors-*.faiss")]
        faiss.write_index(index, str(written))
        written.replace(self._folder / f"vectors-{len(rows):012}.faiss")
        for path in old:
            path.unlink(missing_ok=True)
        return recall

    def search(self, query: Array, count: int) -> Ranked:
        rows, query = self._rows(), np.ascontiguousarray(query[None], dtype=np.float32)
        path, covered = self._index_file()
        if path != self._loaded[0]:
            index: Any = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
            # Starting 32 threads to read ahead costs more than a search.
            lists: Any = faiss.downcast_InvertedLists(index.invlists)
            lists.prefetch_nthread = 0
            self._loaded = path, index
        found: list[tuple[Any, Any]] = []
        if covered < len(rows):
            scores, ids = _exact(query, rows[covered:], count)
            found += zip(ids[0] + covered, scores[0], strict=True)
        if self._loaded[1] is not None:
            scores, ids = self._loaded[1].search(query, count)
            found += zip(ids[0], scores[0], strict=True)
        hits = [(int(row) + 1, float(score)) for row, score in found if row >= 0]
        return sorted(hits, key=lambda hit: (-hit[1], hit[0]))[:count]

    def _rows(self) -> Array:
        shape = (len(self), self._dim)
        if not shape[0]:
            return np.zeros(shape, dtype=np.float32)
        return np.memmap(self._path, dtype=np.float32, mode="r", shape=shape)

    def _index_file(self) -> tuple[Path | None, int]:
        path = max(self._folder.glob("vectors-*.faiss"), default=None)
        return (None, 0) if path is None else (path, int(path.stem.removeprefix("vectors-")))


def _exact(queries: Array, rows: Array, count: int) -> tuple[Array, npt.NDArray[np.int64]]:
    return faiss.knn(queries, rows, min(count, len(rows)), metric=faiss.METRIC_INNER_PRODUCT)


def _choose_nprobe(index: faiss.IndexIVF, rows: Array, rng: np.random.Generator) -> float:
    """Probe as few lists (a power of two) as the target needs; return the recall.

    Sampled rows are the queries. Each finds itself, which is not counted.
    """
    sample = np.sort(rng.choice(len(rows), min(_SAMPLED_QUERIES, len(rows)), replace=False))
    sample = sample[rows[sample].any(axis=1)]  # without removed passages
    queries = np.ascontiguousarray(rows[sample])
    _, exact = _exact(queries, rows, 11)
    wanted = [{*ids[ids != own]} for own, ids in zip(sample, exact, strict=True)]
    index.nprobe = 1
    while True:
        _, found = index.search(queries, 11)
        recalls = [len(ids & {*near}) / len(ids) for ids, near in zip(wanted, found, strict=True)]
        recall = float(np.mean(recalls))
        if recall >= TARGET_RECALL or index.nprobe >= index.nlist:
            return recall
        index.nprobe = min(2 * index.nprobe, index.nlist)
