"""Addresses of pages, and lists of hosts that may or may not be visited."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from posixpath import normpath
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx

from atommem.envs.web.tools import PageError
from atommem.errors import ConfigError
from atommem.files import load_beside

_MAX_URL = 4096
_HOST = re.compile(rb"[a-z0-9._-]+|[0-9a-f:.]+")  # readers disagree on the meaning of others


def parse_address(url: str) -> httpx.URL:
    """Return the address of a page in normal form; raises `PageError`."""
    try:
        if len(url) > _MAX_URL:
            raise httpx.InvalidURL(f"it is longer than {_MAX_URL} characters")
        parsed = httpx.URL(url)
        if parsed.scheme not in ("http", "https") or not _HOST.fullmatch(parsed.raw_host):
            raise httpx.InvalidURL("start it with https:// or http:// and a host")
        if parsed.userinfo or not 0 <= (parsed.port or 0) < 65536:
            raise httpx.InvalidURL("it has a user name or a wrong port")
    except (httpx.InvalidURL, UnicodeError) as error:
        raise PageError(f"{url[:_MAX_URL]} is not a valid address: {error}.") from error
    return parsed


@cache
def default_denied_hosts() -> tuple[str, ...]:
    """Return the hosts that publish benchmark answers (``denied_hosts.yaml``)."""
    return tuple(load_beside(__file__, "denied_hosts.yaml"))


class HostRules:
    """Allowed and denied hosts, each with or without a path prefix (``huggingface.co/datasets``).

    An entry covers subdomains. A denied entry is also denied inside the URL of an archive or
    mirror, and wins over an allowed one. Without allowed ones, all are.
    """

    def __init__(self, allow: Sequence[str] = (), deny: Sequence[str] = ()) -> None:
        self._allow = [_parse_entry(entry) for entry in allow]
        self._deny = [_parse_entry(entry) for entry in deny]

    @classmethod
    def of(cls, config: Any) -> HostRules:
        """Return the rules of a `WebConfig`, including the hosts that are denied by default."""
        return cls(config.allow_hosts, [*default_denied_hosts(), *config.deny_hosts])

    def allows(self, name: str) -> bool:
        """Return whether a URL may be visited; a title or id is checked against `deny` only."""
        place = _normalize(name)
        if not place:
            return "://" not in name
        rest = place.partition("/")[2]
        if any(_is_below(place, entry) or _contains(rest, entry) for entry in self._deny):
            return False
        if not self._allow or "://" not in name:
            return True
        return any(_is_below(place, entry) for entry in self._allow)


def _parse_entry(entry: str) -> str:
    place = _normalize(entry)
    if not place:
        raise ConfigError(
            f"allow_hosts or deny_hosts contains {entry!r}: not a host. Write example.org/path."
        )
    return place


def _normalize(url: str) -> str:
    """Return host (without port), path and query, decoded and in lower case; "" without a host."""
    url = url.replace("\\", "/")  # browsers do so
    try:
        parts = urlsplit(re.sub(r"(?i)^\s*(?:https?:|[a-z][a-z0-9+.-]*:(?=//))?/*", "//", url))
    except ValueError:
        return ""
    path, query = parts.path, parts.query
    for _ in range(3):  # %252F and the like
        path, query = unquote(path), unquote(query)
    host = unquote(parts.hostname or "").rstrip(".")
    rest = normpath(f"/{path}").lstrip("/") + (f"?{query}" if query else "")
    return f"{host}/{rest}".casefold().rstrip("/")


def _is_below(place: str, entry: str) -> bool:
    host, _, path = place.partition("/")
    entry_host, _, prefix = entry.partition("/")
    if not f".{host}".endswith(f".{entry_host}"):
        return False
    return not prefix or re.match(rf"{re.escape(prefix)}(?!\w)", path) is not None


def _contains(rest: str, entry: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(entry)}(?![\w-])", rest) is not None
