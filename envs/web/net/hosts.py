"""Which pages may be visited: lists of hosts that are allowed, and of hosts that are not."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from posixpath import normpath
from urllib.parse import unquote, urlsplit

import yaml

from atommem.envs.web.web_config import WebConfig
from atommem.errors import ConfigError


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

    Raises:
        ConfigError: An entry is no host.
    """

    def __init__(self, allow: Sequence[str] = (), deny: Sequence[str] = ()) -> None:
        self._allow = [_listed(entry) for entry in allow]
        self._deny = [_listed(entry) for entry in deny]

    @classmethod
    def of(cls, config: WebConfig) -> HostRules:
        """Those of the settings, with the hosts that are denied by default."""
        return cls(config.allow_hosts, [*denied_by_default(), *config.deny_hosts])

    def allows(self, url: str) -> bool:
        """Whether `url` may be visited; what is no address may not, whoever wrote it."""
        place = _place(url)
        if place is None or self._denies(place):
            return False
        if (
            place.partition("/")[2] == "robots.txt"
        ):  # what a site says of robots is asked before any page of it
            place = place.partition("/")[0]
            return not self._allow or any(
                _is_below(place, entry.partition("/")[0]) for entry in self._allow
            )
        return not self._allow or any(_is_below(place, entry) for entry in self._allow)

    def allows_name(self, name: str) -> bool:
        """As `allows`, of what may also be a title or an id: it is held to what is denied all the same."""
        if "://" in name:
            return self.allows(name)
        place = _place(name)
        return place is None or not self._denies(place)

    def _denies(self, place: str) -> bool:
        rest = place.partition("/")[2]
        return any(_is_below(place, entry) or _mentions(rest, entry) for entry in self._deny)


def _listed(entry: str) -> str:
    place = _place(entry)
    if not place:
        raise ConfigError(
            f"allow_hosts or deny_hosts have {entry!r}: write a host (example.org), or one with a path."
        )
    return place


def _place(url: str) -> str | None:
    try:
        return _folded(url)
    except ValueError:
        return None


def _folded(url: str) -> str:
    """Host (without port) and the rest: decoded, its path without detours, in one case.

    Browsers, and readers that are some, also take ``\\`` for ``/``, leave out slashes behind the scheme, and fold
    names.
    """
    url = unicodedata.normalize("NFKC", url).replace("\\", "/").replace("\u3002", ".")
    parts = urlsplit(re.sub(r"(?i)^\s*(?:https?:|[a-z][a-z0-9+.-]*:(?=//))?/*", "//", url))
    path, query = parts.path, parts.query
    for _ in range(3):  # %252F and the like
        path, query = unquote(path), unquote(query)
    seen = (
        character
        for character in unquote(parts.hostname or "")
        if unicodedata.category(character) != "Cf"
    )
    host = "".join(seen).rstrip(".")
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
