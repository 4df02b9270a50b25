"""A corpus: pages in a folder, searched by words, by vectors, or by both, and read by id, URL or title."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from atommem.config import EmbedderConfig, check_choice, fields_of, without_addresses
from atommem.embedding import make_embedder
from atommem.envs.task_files import write_json
from atommem.envs.web.corpus.corpus_input import Page
from atommem.envs.web.corpus.dense import DenseIndex
from atommem.envs.web.corpus.lexical import LexicalIndex, Ranked
from atommem.envs.web.corpus.page_store import PageStore, batched
from atommem.envs.web.page_texts import named
from atommem.errors import ConfigError, DataError

MANIFEST = "corpus.json"
MODES = ("lexical", "dense", "hybrid")
PASSAGE_CHARACTERS = 2000
_DEPTH = 100
"""Passages of each ranking that are fused."""
_RANK = 60
"""k of reciprocal rank fusion (Cormack et al. 2009)."""
_PAGES_PER_TRANSACTION = 2000
_MOST_LINKS = 40


@dataclass(frozen=True, slots=True)
class Found:
    """A page that a search found, by its best passage.

    Attributes:
        page: The whole page.
        passage: The text that was found.
        score: BM25, inner product, or the sum of reciprocal ranks.
    """

    page: Page
    passage: str
    score: float


class Corpus:
    """Pages and their indexes in one folder. Any number of processes may read it while one adds to it.

    Args:
        folder: That `build_corpus` made.
        embedder: Settings that differ from those it was built with: where the same model lies on this machine.

    Raises:
        ConfigError: There is no corpus, it is of another version, or its embedder is another one.
        DataError: A file of it is damaged or missing.
    """

    def __init__(self, folder: str | Path, embedder: Mapping[str, Any] | None = None) -> None:
        self.folder = Path(folder)
        manifest = _manifest(self.folder)
        if not os.access(self.folder, os.W_OK):
            raise ConfigError(
                f"{self.folder}: cannot be written, and its indexes want locks: read a copy of it."
            )
        if (self.folder / "lexical").exists() and not (self.folder / "pages.sqlite").exists():
            raise DataError(
                f"{self.folder}: has an index and no pages.sqlite: build the corpus anew."
            )
        self._pages = PageStore(self.folder / "pages.sqlite", manifest["passage_characters"])
        self._lexical = LexicalIndex(self.folder / "lexical")
        self._digest: tuple[tuple[int, ...], str] | None = None
        self._dense: DenseIndex | None = None
        if manifest["embedder"] is not None:
            given = {name: value for name, value in (embedder or {}).items() if value is not None}
            settings = fields_of(EmbedderConfig, without_addresses(manifest["embedder"]) | given)
            made = make_embedder(EmbedderConfig(**settings))
            if (made.dim, made.id) != (manifest["dim"], manifest["embedder_id"]):
                raise ConfigError(
                    f"{self.folder}: its vectors are those of {manifest['embedder_id']!r}, but the embedder is "
                    f"{made.id!r}: give the same one."
                )
            self._dense = DenseIndex(self.folder / "vectors.f32", made)

    @property
    def modes(self) -> tuple[str, ...]:
        """How it can be searched, the best way last."""
        return MODES if self._dense is not None else MODES[:1]

    @property
    def counts(self) -> dict[str, int]:
        """How many pages and passages it holds."""
        pages, passages, _ = self._pages.counts()
        return {"pages": pages, "passages": passages}

    @property
    def complete(self) -> bool:
        """Whether all of its passages can be found: not before an addition that was cut short is completed."""
        indexed = [self._lexical.last(), *([] if self._dense is None else [self._dense.last()])]
        return min(indexed) >= self._pages.counts()[2]

    @property
    def version(self) -> str:
        """A digest of all that its pages say: a second for a million of them, and kept until pages are added."""
        counts = self._pages.counts()
        if self._digest is None or self._digest[0] != counts:
            self._digest = counts, self._pages.digest()
        return self._digest[1]

    async def add(self, pages: Iterable[Page]) -> int:
        """Add pages and index what is new; a page under an id that is there replaces it. Returns how many were new.

        An addition that was cut short is completed by the next one.

        Raises:
            ConfigError: Another process is adding.
            OutageError: The embedder is out of reach.
        """
        added = await asyncio.to_thread(self._add, pages)
        if self._dense is not None:
            await self._dense.add(self._pages.after(self._dense.last()))
        return added

    async def search(
        self, queries: Sequence[str], count: int, mode: str | None = None
    ) -> list[list[Found]]:
        """For each query the pages that fit best, each once, at most `count`.

        Args:
            queries: What is looked for.
            count: Most pages for each.
            mode: One of `modes`; None is the last of them. Hybrid sums 1 / (60 + rank) over both rankings.

        Raises:
            ConfigError: It cannot be searched so.
            OutageError: The embedder is out of reach.
        """
        mode = mode or self.modes[-1]
        check_choice("mode", mode, self.modes)
        vectors: Sequence[Any] = [None] * len(queries)
        if self._dense is not None and mode != "lexical":
            vectors = list(await self._dense.embedder.embed(queries, "query"))
        # Off the event loop: a common word in a million passages takes a tenth of a second.
        return await asyncio.to_thread(
            lambda: [
                self._found(query, vector, count, mode)
                for query, vector in zip(queries, vectors, strict=True)
            ]
        )

    def page(self, name: str) -> Page | None:
        """The page of this id, URL or title; None where there is none."""
        return self._pages.page(name)

    def links(self, page: Page) -> list[str]:
        """Titles of other pages that `page` names, in the order in which it does."""
        titles: dict[str, str] = {}

        def known(names: Iterable[str]) -> set[str]:
            titles.update(self._pages.cores(names))
            return set(titles)

        linked = [titles[name] for name in named(page.text, known)]
        return [title for title in linked if title != page.title][:_MOST_LINKS]

    async def close(self) -> None:
        """Close its files and its embedder."""
        self._pages.close()
        if self._dense is not None:
            await self._dense.embedder.close()

    def _add(self, pages: Iterable[Page]) -> int:
        added = 0
        for batch in batched(pages, _PAGES_PER_TRANSACTION):
            new, gone = self._pages.add(batch)
            added += new
            if gone:
                self._lexical.add((), gone)
        self._lexical.add(self._pages.after(self._lexical.last()))
        return added

    def _found(self, query: str, vector: Any, count: int, mode: str) -> list[Found]:
        depth = max(_DEPTH, count)
        rankings: list[Ranked] = []
        if mode != "dense":
            rankings.append(self._lexical.search(query, depth))
        if mode != "lexical" and self._dense is not None:
            rankings.append(self._dense.search(vector, depth))
        ranked = rankings[0] if len(rankings) == 1 else fused(rankings)
        best: dict[str, Found] = {}
        for part in batched(ranked, max(16, 2 * count)):
            passages = self._pages.passages([number for number, _ in part])
            for number, score in part:
                if number in passages:
                    page, text = passages[number]
                    best.setdefault(page.id, Found(page, text, score))
            if len(best) >= count:
                break
        return list(best.values())[:count]


def build_corpus(
    pages: Iterable[Page],
    folder: str | Path,
    embedder: EmbedderConfig | None = None,
    passage_characters: int = PASSAGE_CHARACTERS,
) -> dict[str, int]:
    """Make a corpus of `pages`, or add them to the one in `folder`; not from within an event loop.

    Args:
        pages: A page under an id (or URL) that is there replaces it.
        folder: Where it lies.
        embedder: For dense search; None is words alone. Of a corpus that is there: where its model lies.
        passage_characters: Pages are searched by passages of at most so many characters, and read whole.

    Returns:
        ``added``, ``pages`` and ``passages``.

    Raises:
        ConfigError: A setting is wrong, or contradicts the corpus that is there.
        DataError: A page cannot be read.
        OutageError: The embedder is out of reach; what was added so far stays.
    """
    folder, pages = Path(folder), iter(pages)
    first = list(islice(pages, 1))  # a file that cannot be read leaves no folder
    try:
        if not (folder / MANIFEST).exists():
            _start(folder, embedder, passage_characters)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made ({error}): give another folder.") from error
    return asyncio.run(_added(chain(first, pages), folder, embedder))


def fused(rankings: Iterable[Ranked]) -> Ranked:
    """Reciprocal rank fusion: each ranking gives 1 / (60 + rank)."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, (number, _) in enumerate(ranking, start=1):
            scores[number] = scores.get(number, 0.0) + 1 / (_RANK + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


async def _added(
    pages: Iterable[Page], folder: Path, embedder: EmbedderConfig | None
) -> dict[str, int]:
    corpus = Corpus(folder, None if embedder is None else asdict(embedder))
    try:
        if embedder is not None and corpus.modes == MODES[:1]:
            raise ConfigError(
                f"{folder}: was built without an embedder: add without one, or build it anew elsewhere."
            )
        return {"added": await corpus.add(pages), **corpus.counts}
    finally:
        await corpus.close()


def _start(folder: Path, embedder: EmbedderConfig | None, passage_characters: int) -> None:
    if passage_characters < 1:
        raise ConfigError(f"passage_characters is {passage_characters}: give at least 1.")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(
            f"{folder}: holds other files and no corpus: give an empty or new folder."
        )
    made = None if embedder is None else make_embedder(embedder)
    manifest = {
        "version": 1,
        "passage_characters": passage_characters,
        "embedder": None if embedder is None else asdict(embedder),
        "embedder_id": None if made is None else made.id,
        "dim": None if made is None else made.dim,
    }
    write_json(folder / MANIFEST, manifest)


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder}: is no corpus ({error}): make one with atommem corpus build --out."
        ) from error
    if not isinstance(manifest, dict) or manifest.get("version") != 1:
        raise ConfigError(f"{path}: is of another version: build the corpus anew.")
    return manifest
