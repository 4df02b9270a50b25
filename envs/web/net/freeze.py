"""Turn the pages of a recording into a corpus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from atommem.config import EmbedderConfig
from atommem.envs.web.corpus.corpus import build_corpus
from atommem.envs.web.corpus.pages import Page
from atommem.envs.web.net.recording import Recording
from atommem.errors import ConfigError
from atommem.text_safety import clean


def recorded_pages(recording: Recording) -> Iterator[Page]:
    """Yield the last version of each page, with its requested address as id."""
    pages: dict[str, Page] = {}
    for call, result in recording.results():
        if result.is_error or not result.title:
            continue
        url = clean(result.origin or result.title)
        values = json.loads(call.arguments).values()
        requested = clean(next((value for value in values if isinstance(value, str)), url))
        known = pages.get(url)
        name = known.id if known is not None and known.id != url else requested
        pages[url] = Page(clean(result.text), clean(result.title), url, name)
    yield from pages.values()


def freeze(
    recording: Recording, folder: str | Path, embedder: EmbedderConfig | None = None
) -> dict[str, int]:
    """Build or update the corpus in `folder` with the recording's pages.

    Returns:
        ``pages``: in the corpus; ``unread``: found by searches, but never read.

    Raises:
        ConfigError: The recording has no page, or a setting contradicts the existing corpus.
        OutageError: The embedder is out of reach.
    """
    pages = list(recorded_pages(recording))
    if not pages:
        raise ConfigError(f"{recording.path}: no page was read, there is nothing to freeze.")
    built = build_corpus(pages, folder, embedder)
    read = {name for page in pages for name in (page.url, page.id)}
    results = (result for _, result in recording.results() if not result.title)
    found = {link.target for result in results for link in result.links}
    return {"pages": built["pages"], "unread": len(found - read)}
