"""What may be visited: an SSRF guard at the socket, and lists of hosts.

The guard resolves once, checks, and connects to a checked address. Checks of a URL's text miss what
a resolver makes of it (127.1, 0x7f000001, a name that points inside), and a second lookup can give
another answer (DNS rebinding)."""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from posixpath import normpath
from typing import Any
from urllib.parse import unquote, urlsplit

import httpcore
import httpx
from anyio import to_thread

from atommem.envs.web.tools import PageError
from atommem.errors import ConfigError, OutageError
from atommem.files import load_beside

Address = IPv4Address | IPv6Address
Rule = Callable[[Address, int], bool]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
PORTS = frozenset({80, 443, 8000, 8080, 8443})
_NAT64 = ip_network("64:ff9b::/96")
_GLOBAL_UNICAST = ip_network("2000::/3")
_LOCAL = ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "2001::/23", "3fff::/20")
"""Global by Python's tables, but local services of a cloud, router or protocol."""
_LOCAL_SERVICES = tuple(map(ip_network, _LOCAL))
_MAX_ADDRESSES = 4
_CONTROL_NAME = "example.com"


def is_public(address: Address, port: int) -> bool:
    """Return whether the address is globally routable unicast and the port is one of the web."""
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            address = IPv4Address(int(address) & 0xFFFF_FFFF)
        elif address not in _GLOBAL_UNICAST or address.sixtofour is not None:
            return False  # includes mapped, link-local, site-local and 6to4 addresses
    return (
        port in PORTS
        and address.is_global
        and not (address.is_multicast or address.is_reserved)
        and not any(address in network for network in _LOCAL_SERVICES)
    )


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host from the system's resolver; raises `socket.gaierror`."""
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    # Silent name servers block for seconds.
    found = await to_thread.run_sync(look_up, abandon_on_cancel=True)
    return list(dict.fromkeys(str(info[4][0]) for info in found))


class GuardedBackend(httpcore.AnyIOBackend):
    """A network backend that connects to addresses and ports that `rule` allows."""

    def __init__(self, rule: Rule = is_public, resolve: Resolve = resolve) -> None:
        self._rule = rule
        self._resolve = resolve

    async def connect_tcp(
        self, host: str, port: int, *args: Any, **options: Any
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address that accepts, after all of them have passed the rule.

        PageError: the host has no address, or one that is not allowed.
        """
        addresses = await self._addresses(host, port)
        if not all(self._rule(address, port) for address in addresses):
            raise PageError(f"{host}:{port} is not on the public web.")
        error: Exception | None = None
        for address in addresses[:_MAX_ADDRESSES]:
            try:
                return await super().connect_tcp(str(address), port, *args, **options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as failure:
                error = failure
        raise error or PageError(f"there is no host {host}.")

    async def _addresses(self, host: str, port: int) -> list[Address]:
        try:
            return [ip_address(text) for text in await self._resolve(host, port)]
        except socket.gaierror as error:
            if error.errno == socket.EAI_AGAIN and not await self._resolver_works():
                raise OutageError(
                    f"neither {host} nor {_CONTROL_NAME} resolves: check this machine's resolver."
                ) from error
            raise PageError(f"there is no host {host}.") from error
        except ValueError as error:  # UnicodeError included
            raise PageError(f"{host!r} is not a valid host name.") from error

    async def _resolver_works(self) -> bool:
        # EAI_AGAIN also means that the name's own servers are silent, which any page can cause.
        try:
            await self._resolve(_CONTROL_NAME, 443)
        except socket.gaierror as error:
            return error.errno != socket.EAI_AGAIN
        return True


_MAX_URL = 4096
_PUBLISH_ANSWERS: list[str] = load_beside(__file__, "denied_hosts.yaml")
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
        return cls(config.allow_hosts, [*_PUBLISH_ANSWERS, *config.deny_hosts])

    def allows(self, name: str) -> bool:
        """Return whether a URL may be visited; a title or id is checked against `deny` only."""
        if not (place := _normalize(name)):
            return "://" not in name
        rest = place.partition("/")[2]
        if any(_is_below(place, entry) or _contains(rest, entry) for entry in self._deny):
            return False
        if not self._allow or "://" not in name:
            return True
        return any(_is_below(place, entry) for entry in self._allow)


def _parse_entry(entry: str) -> str:
    if not (place := _normalize(entry)):
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
