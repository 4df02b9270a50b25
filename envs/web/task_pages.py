"""The documents of a task as its own little web: its pages can be searched and visited, and nothing else is there.

A title that another page's text names is a link. Where the task says so itself (``metadata["links"]``: titles by
title), these are the links; a link to a page that is not among the documents is dead.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import log
from typing import Any

from atommem.envs.task import ByIdentity, Document, Task
from atommem.envs.web.page_texts import folded, snippet, words
from atommem.envs.web.tools import Link, PageError, Tool, ToolResult, ToolSource, text_tool

_KEPT = 256


class TaskPages(ToolSource):
    """``search`` and ``visit`` over the documents of each task."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._webs = lru_cache(maxsize=_KEPT)(_Web)

    @property
    def tools(self) -> Sequence[Tool]:
        """The two."""
        page = "The title of a page, or the number of a link shown now."
        return (
            text_tool("search", "Finds pages.", "query", "Words to look for.", self._search),
            text_tool("visit", "Shows a page.", "page", page, self._visit),
        )

    async def _search(self, query: str, task: Task) -> ToolResult:
        found = self._webs(ByIdentity(task)).search(query, self.config.search_results)
        if not found:
            raise PageError(f"No page was found for: {query}")
        text = "\n".join(f"{page.title}: {snippet(page.text, query)}" for page in found)
        return ToolResult(text, links=tuple(Link(page.title, page.title) for page in found))

    async def _visit(self, name: str, task: Task) -> ToolResult:
        web = self._webs(ByIdentity(task))
        page = web.pages.get(folded(name))
        if page is None:
            raise PageError(f"There is no page: {name}")
        links = tuple(Link(title, title) for title in web.links(page))
        return ToolResult(page.text, title=page.title, links=links, origin=page.title)


class _Web:
    """The pages of one task."""

    def __init__(self, key: ByIdentity) -> None:
        task = key.task
        titled: dict[str, dict[str, Document]] = {}
        for document in task.documents:
            if document.title:
                titled.setdefault(folded(document.title), {}).setdefault(document.text, document)
        # Paragraphs of one title are one page.
        self.pages = {
            title: replace(next(iter(said.values())), text="\n\n".join(said))
            for title, said in titled.items()
        }
        self._links: Mapping[str, Sequence[str]] | None = task.metadata.get("links")
        self._words = {
            title: Counter(words(f"{page.title} {page.text}")) for title, page in self.pages.items()
        }
        seen = Counter(word for words in self._words.values() for word in words)
        self._rarity = {word: log(1 + len(self.pages) / count) for word, count in seen.items()}
        titles = sorted(
            (re.escape(page.title) for page in self.pages.values()), key=len, reverse=True
        )
        self._titles = (
            re.compile(rf"(?<!\w)(?:{'|'.join(titles)})(?!\w)", re.IGNORECASE) if titles else None
        )

    def search(self, query: str, count: int) -> list[Document]:
        """The pages that share the rarest words with `query`, the best first; a word in a title counts twice."""
        wanted = set(words(query))
        scores = {}
        for title, said in self._words.items():
            in_title = set(words(title))
            shared = [word for word in wanted if word in said]
            score = sum(self._rarity[word] * (1 + (word in in_title)) for word in shared)
            if score:
                scores[title] = score
        return [
            self.pages[title] for title in sorted(scores, key=lambda title: -scores[title])[:count]
        ]

    def links(self, page: Document) -> list[str]:
        """The titles that `page` leads to, in the order in which it names them."""
        if self._links is not None:
            return list(self._links.get(page.title, ()))
        if self._titles is None:
            return []
        named = dict.fromkeys(folded(match[0]) for match in self._titles.finditer(page.text))
        return [self.pages[title].title for title in named if title != folded(page.title)]
