"""robots.txt (RFC 9309): whether a site allows robots to read a page."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

from atommem.envs.web.net.extraction import Extraction, is_allowed_by_robots
from atommem.envs.web.net.fetcher import Fetcher
from atommem.envs.web.tools import PageError

_SECONDS = 3600.0
_MAX_SITES = 1000
_MAX_BYTES = 100_000


class Robots:
    """The rules of sites for `agent`, fetched once an hour."""

    def __init__(self, fetcher: Fetcher, extraction: Extraction, agent: str) -> None:
        self._fetcher = fetcher
        self._extraction = extraction
        self._agent = agent
        self._rules: dict[str, tuple[float, bytes]] = {}

    async def check(self, url: str) -> None:
        """Raise `PageError` if `url` may not be read, or if its site's rules cannot be fetched."""
        parts = urlsplit(url)
        site = f"{parts.scheme}://{parts.netloc}"
        expires, rules = self._rules.get(site, (0.0, b""))
        if expires <= time.monotonic():
            try:
                rules = (await self._fetcher.fetch(f"{site}/robots.txt")).body[:_MAX_BYTES]
            except PageError as error:
                if error.status is None or not 400 <= error.status < 500:
                    raise
                rules = b""
            self._rules.pop(site, None)
            self._rules[site] = (time.monotonic() + _SECONDS, rules)
            if len(self._rules) > _MAX_SITES:
                del self._rules[next(iter(self._rules))]
        # Wildcards can make matching take forever, hence a worker process.
        if rules.strip() and not await self._extraction.run(
            is_allowed_by_robots, rules, url, self._agent
        ):
            raise PageError(f"{parts.netloc} does not allow robots to read {url}.")
