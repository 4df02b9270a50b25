"""A corpus: pages in a folder, searched by words and vectors, and read by name."""

import asyncio
import json
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, TypeVar

from atommem.config import EmbedderConfig, check_choice, without_addresses
from atommem.embedding import make_embedder
from atommem.envs.web import tools
from atommem.envs.web.corpus.indexes import Ranked, VectorIndex, WordIndex
from atommem.envs.web.corpus.pages import Page, PageStore
from atommem.errors import ConfigError, DataError
from atommem.files import file_digest, write_json

MANIFEST = "corpus.json"
MODES = ("lexical", "dense", "hybrid")
PASSAGE_CHARACTERS = 2000
_FUSED = 100  # passages of each ranking
_RANK = 60  # k of reciprocal rank fusion (Cormack et al. 2009)
_PAGES_PER_TRANSACTION = 2000
_TEXTS_PER_BATCH = 256
_MAX_LINKS = 40
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Found:
    """A found page with its best passage."""

    page: Page
    passage: str
    score: float


class Corpus:
    """Pages and their indexes in one folder. Other processes may read while one adds.

    `embedder` has settings that differ from those of the build, such as the model's location here.
    Unless it is `adding`, it warns of an addition that has not ended. DataError: a damaged file.
    """

    def __init__(
        self, folder: str | Path, embedder: Mapping[str, Any] | None = None, *, adding: bool = False
    ) -> None:
        self.folder = Path(folder)
        try:
            manifest = self._manifest = json.loads((self.folder / MANIFEST).read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{folder}: not a corpus ({error}). Make one with atommem corpus build."
            ) from error
        if "files" not in manifest and not adding:
            warnings.warn(f"{folder}: an addition goes on, or was interrupted.", stacklevel=2)
        for name, digest in manifest.get("files", {}).items():
            path = self.folder / name
            if not path.is_file() or file_digest(path) != digest:
                raise DataError(f"{path}: not what was built. Build the corpus again.")
        self.pages = PageStore(self.folder / "pages.sqlite", manifest["passage_characters"])
        self._words = WordIndex(self.folder / "words")
        self._vectors: VectorIndex | None = None
        if manifest["embedder"] is not None:
            changes = {name: value for name, value in (embedder or {}).items() if value is not None}
            settings = without_addresses(manifest["embedder"]) | changes
            self._embedder = make_embedder(EmbedderConfig(**settings))
            if self._embedder.id != manifest["embedder_id"]:
                raise ConfigError(
                    f"{self.folder}: built with embedder {manifest['embedder_id']!r}, but this is "
                    f"{self._embedder.id!r}. Use the same one."
                )
            self._vectors = VectorIndex(self.folder, self._embedder.dim)

    @property
    def modes(self) -> tuple[str, ...]:
        return MODES if self._vectors is not None else MODES[:1]

    async def add(self, pages: Iterable[Page]) -> dict[str, Any]:
        """Add pages and index them; see `build_corpus`. Blocks the event loop."""
        added, recall = 0, None
        manifest = {name: value for name, value in self._manifest.items() if name != "files"}
        write_json(self.folder / MANIFEST, manifest)  # the files change now
        for batch in batched(pages, _PAGES_PER_TRANSACTION):
            new, removed = self.pages.add(batch)
            added += new
            if removed:
                self._words.add((), removed)
        self._words.add(self.pages.passages_after(self._words.last()))
        if self._vectors is not None:
            for part in batched(self.pages.passages_after(len(self._vectors)), _TEXTS_PER_BATCH):
                numbers, texts = zip(*part, strict=True)
                self._vectors.append(numbers, await self._embedder.embed(texts, "entry"))
            recall = self._vectors.build()
        digests = {
            path.relative_to(self.folder).as_posix(): file_digest(path)
            for path in sorted(self.folder.rglob("[!.]*"))
            if path.is_file() and path.name != MANIFEST
        }
        write_json(self.folder / MANIFEST, manifest | {"files": digests})
        return {"added": added, **self.pages.counts(), "recall": recall}

    async def search(
        self, queries: Sequence[str], count: int, mode: str | None = None
    ) -> list[list[Found]]:
        """Return at most `count` pages for each query, best first.

        `mode` is one of `modes`, by default the last. Hybrid fuses rankings by reciprocal ranks.
        """
        mode = mode or self.modes[-1]
        check_choice("mode", mode, self.modes)
        vectors: Iterable[Any] = repeat(None)
        if mode != "lexical":
            vectors = await self._embedder.embed(queries, "query")
        search = partial(self._search, count=count, mode=mode)
        # Off the event loop: a common word in a million passages takes a tenth of a second.
        return await asyncio.to_thread(lambda: [*map(search, queries, vectors)])

    def links(self, page: Page) -> list[str]:
        """Return the titles of other pages that `page` names, in the order of their mention."""
        linked = tools.named_titles(page.text, self.pages.titles)
        return [title for title in linked if title != page.title][:_MAX_LINKS]

    async def close(self) -> None:
        self.pages.close()
        if self._vectors is not None:
            await self._embedder.close()

    def _search(self, query: str, vector: Any, count: int, mode: str) -> list[Found]:
        depth = max(_FUSED, count)
        rankings = [] if mode == "dense" else [self._words.search(query, depth)]
        if mode != "lexical" and self._vectors is not None:
            rankings.append(self._vectors.search(vector, depth))
        ranked = rankings[0] if len(rankings) == 1 else fuse(rankings)
        passages = self.pages.passages([number for number, _ in ranked])
        best: dict[str, Found] = {}
        for number, score in ranked:
            if number in passages:
                page, text = passages[number]
                best.setdefault(page.id, Found(page, text, score))
        return list(best.values())[:count]


def build_corpus(
    pages: Iterable[Page],
    folder: str | Path,
    embedder: EmbedderConfig | None = None,
    passage_characters: int = PASSAGE_CHARACTERS,
) -> dict[str, Any]:
    """Build a corpus, or add pages to an existing one; not within an event loop.

    A page replaces that of its id. An interrupted addition is completed by the next one. `embedder`
    is for dense search; for an existing corpus, what differs from its build. OutageError: it is out
    of reach; what was added so far stays.

    Returns ``added`` (new or changed), ``pages``, ``passages``, ``recall`` (@10, of a new index).
    """
    folder, pages = Path(folder), iter(pages)
    first = list(islice(pages, 1))  # an unreadable file leaves no folder
    settings = None if embedder is None else asdict(embedder)
    if not (folder / MANIFEST).exists():
        if passage_characters < 1:
            raise ConfigError(f"passage_characters={passage_characters}: must be at least 1.")
        named = {"embedder": settings, "embedder_id": embedder and make_embedder(embedder).id}
        write_json(folder / MANIFEST, {"passage_characters": passage_characters, **named})

    async def add() -> dict[str, Any]:
        corpus = Corpus(folder, settings, adding=True)
        try:
            if settings is not None and corpus.modes == MODES[:1]:
                raise ConfigError(f"{folder}: built without an embedder. Build it anew elsewhere.")
            return await corpus.add(chain(first, pages))
        finally:
            await corpus.close()

    return asyncio.run(add())


def batched(items: Iterable[_Item], size: int) -> Iterator[tuple[_Item, ...]]:
    """Yield `items` in tuples of `size` (`itertools.batched` of Python 3.12)."""
    rest = iter(items)
    while batch := tuple(islice(rest, size)):
        yield batch


def fuse(rankings: Iterable[Ranked]) -> Ranked:
    """Fuse rankings: each adds 1 / (60 + rank) to a score."""
    scores: defaultdict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, (number, _) in enumerate(ranking, start=1):
            scores[number] += 1 / (_RANK + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


class CorpusSource(tools.ToolSource):
    """``tools: [corpus]``: search and visit in the folder ``corpus``; named titles are links."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if config.corpus is None:
            raise ConfigError("tools=corpus: corpus is unset. Build one with atommem corpus build.")
        self._corpus = Corpus(config.corpus, {"embedder_model": config.corpus_embedder})
        modes = self._corpus.modes
        check_choice("corpus_search", config.corpus_search or modes[-1], modes)
        page = "Title or address of a page, or number of a link shown now."
        self.tools = [
            tools.text_tool("search", "Finds pages.", "query", "Words to look for.", self._search),
            tools.text_tool("visit", "Shows a page.", "page", page, self._visit),
        ]

    def identity(self) -> Mapping[str, Any]:
        return {"corpus": self._corpus.pages.digest(), "corpus_embedder": None}

    async def close(self) -> None:
        await self._corpus.close()

    async def _search(self, query: str, task: Any) -> tools.ToolResult:
        config = self.config
        (found,) = await self._corpus.search([query], config.search_results, config.corpus_search)
        lines = [f"{hit.page.title}: {tools.snippet(hit.passage, query)}" for hit in found]
        links = [tools.Link(hit.page.title, hit.page.id) for hit in found]
        return tools.search_result(query, lines, links)

    async def _visit(self, name: str, task: Any) -> tools.ToolResult:
        if (page := self._corpus.pages.find(name)) is None:
            raise tools.PageError(f"There is no page: {name}")
        titles = await asyncio.to_thread(self._corpus.links, page)
        links = tuple(tools.Link(title, title) for title in titles)
        return tools.ToolResult(page.text, False, page.title, links, page.url or page.id)
