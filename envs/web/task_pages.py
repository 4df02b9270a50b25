"""The documents of a task as its own small web, which can be searched and visited.

A title that another page's text names is a link, unless the task lists links itself
(``metadata["links"]``: titles by title). A link to a page that is not among the documents is dead.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import log
from typing import Any

from atommem.envs.task import Document, Task
from atommem.envs.web import tools
from atommem.words import UNSPACED, words


class TaskPages(tools.ToolSource):
    """``search`` and ``visit`` over the documents of each task."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._webs = lru_cache(maxsize=256)(_TaskWeb)
        page = "The title of a page, or the number of a link shown now."
        self.tools = [
            tools.text_tool("search", "Finds pages.", "query", "Words to look for.", self._search),
            tools.text_tool("visit", "Shows a page.", "page", page, self._visit),
        ]

    async def _search(self, query: str, task: Task) -> tools.ToolResult:
        found = self._webs(task).search(query, self.config.search_results)
        lines = [f"{page.title}: {tools.snippet(page.text, query)}" for page in found]
        links = [tools.Link(page.title, page.title) for page in found]
        return tools.search_result(query, lines, links)

    async def _visit(self, name: str, task: Task) -> tools.ToolResult:
        web = self._webs(task)
        if (page := web.pages.get(tools.fold(name))) is None:
            raise tools.PageError(f"There is no page: {name}")
        links = tuple(tools.Link(title, title) for title in web.links(page))
        return tools.ToolResult(page.text, title=page.title, links=links, origin=page.title)


class _TaskWeb:
    """The pages of one task; documents of one title are one page."""

    def __init__(self, task: Task) -> None:
        documents: dict[str, dict[str, Document]] = {}
        for one in task.documents:
            if one.title:
                documents.setdefault(tools.fold(one.title), {}).setdefault(one.text, one)
        self.pages = {
            title: replace(next(iter(texts.values())), text="\n\n".join(texts))
            for title, texts in documents.items()
        }
        self._links: Mapping[str, Sequence[str]] | None = task.metadata.get("links")
        titles = sorted((page.title for page in self.pages.values()), key=len, reverse=True)
        names = "|".join(map(re.escape, titles))
        inside = rf"[^\W{UNSPACED}]"  # of a word: a script without spaces has no such places
        self._names = re.compile(rf"(?<!{inside})(?:{names})(?!{inside})", re.IGNORECASE)
        self._words = {
            title: {*words(f"{page.title} {page.text}", characters=True)}
            for title, page in self.pages.items()
        }
        counts = Counter(word for found in self._words.values() for word in found)
        self._rarity = {word: log(1 + len(self.pages) / count) for word, count in counts.items()}

    def search(self, query: str, count: int) -> list[Document]:
        """Return the pages with the rarest words of `query`; those in titles count twice."""
        wanted = dict.fromkeys(words(query))
        scores = {}
        for title, found in self._words.items():
            in_title = {*words(title)}
            if shared := [word for word in wanted if word in found]:
                weights = (self._rarity[word] * (1 + (word in in_title)) for word in shared)
                scores[title] = sum(weights)
        best = sorted(scores, key=scores.__getitem__, reverse=True)
        return [self.pages[title] for title in best[:count]]

    def links(self, page: Document) -> list[str]:
        if self._links is not None:
            return list(self._links.get(page.title, ()))
        named = dict.fromkeys(tools.fold(match[0]) for match in self._names.finditer(page.text))
        pages = [self.pages[name] for name in named if name in self.pages]
        return [found.title for found in pages if found is not page]
