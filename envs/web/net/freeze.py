"""Makes a corpus of a cassette: the pages that were read, with a search of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from atommem.config import EmbedderConfig
from atommem.envs.web.corpus.corpus import build_corpus
from atommem.envs.web.corpus.corpus_input import Page
from atommem.envs.web.net.cassette import Cassette
from atommem.errors import ConfigError
from atommem.text_safety import clean


def recorded_pages(cassette: Cassette) -> Iterator[Page]:
    """The pages that were read, each as it was last; its id is what it was asked for by, where that led elsewhere."""
    pages: dict[str, Page] = {}
    for call, result in cassette.results():
        if result.is_error or not result.title:
            continue
        url = clean(result.origin or result.title)
        asked = next((value for value in call.values.values() if isinstance(value, str)), url)
        known = pages.get(url)
        name = known.id if known is not None and known.id != url else clean(asked)
        pages[url] = Page(clean(result.text), clean(result.title), url, name)
    yield from pages.values()


def freeze(
    cassette: Cassette, folder: str | Path, embedder: EmbedderConfig | None = None
) -> dict[str, int]:
    """Make a corpus of the cassette's pages in `folder`; one that is there grows, and its pages are brought up to date.

    Returns:
        ``pages``: in the corpus; ``unread``: pages that searches found and nobody read, which are not in it.

    Raises:
        ConfigError: No page was read, or a setting contradicts the corpus that is there.
        OutageError: The embedder is out of reach.
    """
    pages = list(recorded_pages(cassette))
    if not pages:
        raise ConfigError(f"no page was read on {cassette.path}: there is nothing to freeze.")
    done = build_corpus(pages, folder, embedder)
    read = {name for page in pages for name in (page.url, page.id)}
    found = {
        link.target for _, result in cassette.results() if not result.title for link in result.links
    }
    return {"pages": done["pages"], "unread": len(found - read)}
