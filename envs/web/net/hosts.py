"""Which pages may be visited: lists of hosts that are allowed, and of hosts that are not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from posixpath import normpath
from urllib.parse import unquote, urlsplit

import yaml


@cache
def denied_by_default() -> tuple[str, ...]:
    """Hosts that publish benchmarks' answers (``denied_hosts.yaml``)."""
    return tuple(yaml.safe_load(Path(__file__).with_name("denied_hosts.yaml").read_text()))


class HostRules:
    """Lists of hosts, each with or without the beginning of a path (``huggingface.co/datasets``).

    A host stands for its subdomains too. What is denied is denied also where an archive, a translator or a mirror is
    asked for it, that is: where another URL contains it.

    Args:
        allow: The only ones that may be visited; empty for all.
        deny: Those that may not, also if allowed.
    """

    def __init__(self, allow: Sequence[str] = (), deny: Sequence[str] = ()) -> None:
        self._allow = [_folded(entry) for entry in allow]
        self._deny = [_folded(entry) for entry in deny]

    def allows(self, url: str) -> bool:
        """Whether `url`, an absolute one, may be visited."""
        place = _folded(url)
        rest = place.partition("/")[2]
        if any(_is_below(place, entry) or _mentions(rest, entry) for entry in self._deny):
            return False
        return not self._allow or any(_is_below(place, entry) for entry in self._allow)


def _folded(url: str) -> str:
    """Host (without port) and the rest: decoded, its path without detours, in one case."""
    parts = urlsplit(url if "://" in url else f"//{url}")
    path, query = parts.path, parts.query
    for _ in range(3):  # %252F and the like
        path, query = unquote(path), unquote(query)
    host = (parts.hostname or "").rstrip(".")
    rest = normpath(f"/{path}").lstrip("/") + (f"?{query}" if query else "")
    return f"{host}/{rest}".casefold().rstrip("/")


def _is_below(place: str, entry: str) -> bool:
    host, _, path = place.partition("/")
    entry_host, _, beginning = entry.partition("/")
    if host != entry_host and not host.endswith("." + entry_host):
        return False
    return not beginning or re.match(rf"{re.escape(beginning)}(?!\w)", path) is not None


def _mentions(rest: str, entry: str) -> bool:
    """Whether the rest of another URL holds `entry` as a whole."""
    return re.search(rf"(?<![\w-]){re.escape(entry)}(?![\w-])", rest) is not None
