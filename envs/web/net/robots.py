"""robots.txt (RFC 9309): whether a site lets robots read a page."""

from __future__ import annotations

import time
from collections import OrderedDict
from urllib.parse import urlsplit

from atommem.envs.web.net.extraction import Extraction
from atommem.envs.web.net.fetcher import Fetcher
from atommem.envs.web.tools import PageError

_SECONDS = 3600.0
_KEPT = 64_000_000
"""Bytes of the rules that are kept, of all sites together."""
_OF_A_SITE = 1000
"""Bytes that a site without rules is counted as."""
_LONGEST = 500_000
"""Bytes that are read, as the RFC has it."""


class Robots:
    """What sites say of robots, asked once an hour.

    Args:
        fetcher: Gets robots.txt.
        extraction: Reads it.
        agent: Whom the rules are for.
    """

    def __init__(self, fetcher: Fetcher, extraction: Extraction, agent: str) -> None:
        self._fetcher = fetcher
        self._extraction = extraction
        self._agent = agent
        self._known: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._size = 0

    async def check(self, url: str) -> None:
        """Return if `url` may be read.

        Raises:
            PageError: It may not, or the site's rules cannot be had (an error of its server is no permission).
            OutageError: This machine reaches no network.
        """
        parts = urlsplit(url)
        rules = await self._rules(f"{parts.scheme}://{parts.netloc}")
        if rules.strip():
            answer = await self._extraction.read("robots", rules, url=url, agent=self._agent)
            if not answer["allowed"]:
                raise PageError(f"{parts.netloc} does not let robots read {url}.")

    async def _rules(self, site: str) -> bytes:
        known = self._known.get(site)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        try:
            rules = (await self._fetcher.fetch(f"{site}/robots.txt")).body[:_LONGEST]
        except PageError as error:
            if error.status is None or not 400 <= error.status < 500:
                raise
            rules = b""
        self._forget(self._known.pop(site, None))
        self._known[site] = (time.monotonic() + _SECONDS, rules)
        self._size += len(rules) + _OF_A_SITE
        while self._size > _KEPT:
            self._forget(self._known.popitem(last=False)[1])
        return rules

    def _forget(self, known: tuple[float, bytes] | None) -> None:
        self._size -= 0 if known is None else len(known[1]) + _OF_A_SITE
