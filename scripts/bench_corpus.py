"""Search of a corpus: a million vectors, and real questions by words and vectors.

    OMP_NUM_THREADS=1 python scripts/bench_corpus.py
    OMP_NUM_THREADS=1 python scripts/bench_corpus.py --corpus DATA --embedder_model DIR

1. A million unit vectors in an index on disk, in two shapes: ``clustered`` is like text embeddings,
   ``noise`` uniform on the sphere, the worst case. Recall@10 of fresh queries against exact search
   must be at least .95 in both, and the p50 of a clustered search below a tenth of the exact one.
2. With ``--corpus``, a folder with ``corpus/2wikimultihopqa_corpus.json`` and 2WikiMultihopQA's
   ``dev.json`` and ``train.json``: recall@10 of the titles that a question needs, by words, by
   vectors, and by both. Without ``--embedder_model`` (a sentence-transformers folder) the vectors
   are hashed words. Hybrid must reach the recall of vectors.
"""

import asyncio
import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from common import last_line, percentiles, read_options

from atommem.config import EmbedderConfig
from atommem.envs.benchmarks.questions import get_benchmark
from atommem.envs.web.corpus import indexes
from atommem.envs.web.corpus.corpus import Corpus, build_corpus
from atommem.envs.web.corpus.indexes import VectorIndex
from atommem.envs.web.corpus.pages import Page, read_pages

BENCHMARK = "2wikimultihopqa"
BATCH = 20_000
Array = npt.NDArray[np.float32]
Draw = Callable[[np.random.Generator, int], Array]


def unit(rows: Array) -> Array:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def clustered(dim: int, topics: int = 1000, subtopics: int = 20, rank: int = 40) -> Draw:
    """Draw around the subtopics of topics whose sizes follow Zipf's law."""
    rng = np.random.default_rng(7)
    centres = rng.standard_normal((topics, rank), dtype=np.float32)
    offsets = 0.6 * rng.standard_normal((topics, subtopics, rank), dtype=np.float32)
    basis = rng.standard_normal((rank, dim), dtype=np.float32) / rank**0.5
    weights = 1 / np.arange(1, topics + 1)

    def draw(rng: np.random.Generator, count: int) -> Array:
        topic = rng.choice(topics, count, p=weights / weights.sum())
        low = centres[topic] + offsets[topic, rng.integers(0, subtopics, count)]
        low = low + 0.4 * rng.standard_normal(low.shape, dtype=np.float32)
        high = low @ basis
        return unit(high + 0.2 * rng.standard_normal(high.shape, dtype=np.float32))

    return draw


def noise(dim: int) -> Draw:
    return lambda rng, count: unit(rng.standard_normal((count, dim), dtype=np.float32))


def measure_vectors(draw: Draw, count: int, dim: int, queries: int, folder: Path) -> dict[str, Any]:
    """Build an index of `count` vectors; compare its searches with exact ones."""
    rng = np.random.default_rng(0)
    index = VectorIndex(folder, dim)
    for start in range(0, count, BATCH):
        size = min(BATCH, count - start)
        index.append(list(range(start + 1, start + size + 1)), draw(rng, size))
    began = time.perf_counter()
    sampled = index.build()
    seconds = time.perf_counter() - began
    asked = draw(rng, queries)
    rows = np.memmap(folder / "vectors.f32", dtype=np.float32, mode="r", shape=(count, dim))
    exact: list[set[int]] = []
    exact_times = timed(lambda query: exact.append({*nearest(rows, query)}), asked)
    timed(lambda query: index.search(query, 10), asked[:10])  # maps the file
    found: list[set[int]] = []
    search_times = timed(lambda query: found.append({*dict(index.search(query, 10))}), asked)
    recall = np.mean([len(hits & near) / 10 for hits, near in zip(found, exact, strict=True)])
    return {
        "recall@10": round(float(recall), 4),
        "recall_sampled": round(sampled or 0.0, 4),
        **percentiles(search_times, 50, 95),
        "exact_p50_ms": percentiles(exact_times, 50)["p50_ms"],
        "build_s": round(seconds),
        "disk_mb": round(sum(file.stat().st_size for file in folder.iterdir()) / 1e6),
    }


def nearest(rows: Array, query: Array) -> list[int]:
    return (np.argpartition(-(rows @ query), 10)[:10] + 1).tolist()


def timed(search: Callable[[Array], Any], queries: Array) -> list[float]:
    times = []
    for query in queries:
        began = time.perf_counter()
        search(query)
        times.append(time.perf_counter() - began)
    return times


async def measure_corpus(data: Path, folder: Path, model: str | None) -> dict[str, Any]:
    """Build the sample corpus and search it by every question in every mode."""
    files = [data / BENCHMARK / f"{split}.json" for split in ("dev", "train")]

    def pages() -> Iterator[Page]:
        yield from read_pages(data / "corpus" / f"{BENCHMARK}_corpus.json")
        for file in files:
            for row in get_benchmark(BENCHMARK).read(file):
                yield from (Page(one.text, one.title) for one in row.paragraphs)

    rows = [row for file in files for row in get_benchmark(BENCHMARK).read(file)]
    embedder = EmbedderConfig("sentence_transformer", model) if model else EmbedderConfig("hashing")
    began = time.perf_counter()
    result: dict[str, Any] = await asyncio.to_thread(build_corpus, pages(), folder, embedder)
    result |= {"build_s": round(time.perf_counter() - began, 1), "questions": len(rows)}
    corpus = Corpus(folder)
    for mode in corpus.modes:
        recalls, times = [], []
        for row in rows:
            began = time.perf_counter()
            (hits,) = await corpus.search([row.question.text], 10, mode)
            times.append(time.perf_counter() - began)
            needed = {paragraph.title for paragraph in row.paragraphs if paragraph.gold}
            recalls.append(len(needed & {hit.page.title for hit in hits}) / len(needed))
        recall = round(float(np.mean(recalls)), 4)
        result[mode] = {"recall@10": recall, **percentiles(times, 50)}
    await corpus.close()
    return result


def main() -> int:
    sizes = {"vectors": (1_000_000, 5000), "dim": (384, 32), "queries": (200, 20)}
    args = read_options(__doc__, **sizes, corpus=Path, embedder_model=str)
    if args.quick:
        indexes.FLAT_BELOW = 1000
    result: dict[str, Any] = {"vectors": args.vectors, "dim": args.dim}
    holds = []
    with tempfile.TemporaryDirectory() as scratch:
        for shape in (clustered, noise) if args.vectors else ():
            name = shape.__name__
            folder = Path(scratch) / name
            folder.mkdir()
            size = args.vectors, args.dim, args.queries
            result[name] = measured = measure_vectors(shape(args.dim), *size, folder)
            print(json.dumps({name: measured}), flush=True)
            holds.append(measured["recall@10"] >= 0.95)
            if shape is clustered and not args.quick:
                holds.append(measured["p50_ms"] < measured["exact_p50_ms"] / 10)
        result["peak_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        if args.corpus is not None:
            given = args.corpus, Path(scratch) / "corpus", args.embedder_model
            result["corpus"] = found = asyncio.run(measure_corpus(*given))
            holds.append(found["hybrid"]["recall@10"] >= found["dense"]["recall@10"])
    return last_line({"bench": "corpus", **result, "holds": all(holds)})


if __name__ == "__main__":
    raise SystemExit(main())
