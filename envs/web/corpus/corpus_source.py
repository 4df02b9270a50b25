"""``tools: [corpus]``: search and visit over a corpus in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from atommem.config import check_choice
from atommem.envs.web.corpus.corpus import Corpus
from atommem.envs.web.page_texts import snippet
from atommem.envs.web.tools import Link, PageError, Tool, ToolResult, ToolSource, text_tool
from atommem.errors import ConfigError


class CorpusSource(ToolSource):
    """The corpus in the folder ``corpus``. Titles that a page names are its links.

    Raises:
        ConfigError: ``corpus`` is unset or not a corpus, or has no vectors for ``corpus_search``.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if config.corpus is None:
            raise ConfigError("tools=corpus: corpus is unset. Build one with atommem corpus build.")
        self._corpus = Corpus(config.corpus, {"embedder_model": config.corpus_embedder})
        modes = self._corpus.modes
        check_choice("corpus_search", config.corpus_search or modes[-1], modes)

    @property
    def identity(self) -> Mapping[str, Any]:
        """The version of the corpus in place of its location."""
        return {"corpus": self._corpus.version, "corpus_embedder": None}

    @property
    def tools(self) -> Sequence[Tool]:
        """Search and visit."""
        page = "Title or address of a page, or number of a link shown now."
        return (
            text_tool("search", "Finds pages.", "query", "Words to look for.", self._search),
            text_tool("visit", "Shows a page.", "page", page, self._visit),
        )

    async def close(self) -> None:
        """Close the corpus."""
        await self._corpus.close()

    async def _search(self, query: str, task: Any) -> ToolResult:
        config = self.config
        (found,) = await self._corpus.search([query], config.search_results, config.corpus_search)
        if not found:
            raise PageError(f"No page was found for: {query}")
        text = "\n".join(f"{hit.page.title}: {snippet(hit.passage, query)}" for hit in found)
        return ToolResult(text, links=tuple(Link(hit.page.title, hit.page.id) for hit in found))

    async def _visit(self, name: str, task: Any) -> ToolResult:
        page = self._corpus.page(name)
        if page is None:
            raise PageError(f"There is no page: {name}")
        titles = await asyncio.to_thread(self._corpus.links, page)
        links = tuple(Link(title, title) for title in titles)
        return ToolResult(page.text, title=page.title, links=links, origin=page.url or page.id)
