"""The guard at the socket: a name is resolved once, its addresses are checked, and a checked one is connected to.

Checks of a URL's text miss what a resolver makes of it (127.1, 0x7f000001, a name that points inside), and checks that
resolve for themselves are undone by a second answer (DNS rebinding). Here there is no second answer: TLS and the Host
header keep the name, the connection gets the address that was checked.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import httpcore

from atommem.envs.web.tools import PageError
from atommem.errors import OutageError

Address = IPv4Address | IPv6Address
Rule = Callable[[Address, int], bool]
"""Whether an address and port may be connected to."""
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host, as text. Raises `socket.gaierror`."""

PORTS = frozenset({80, 443, 8000, 8080, 8443})
_NEVER = tuple(
    ipaddress.ip_network(network)
    for network in (
        "168.63.129.16/32",  # Azure's, which answers every virtual machine there from its host
        *(
            "192.0.0.0/24",
            "192.31.196.0/24",
            "192.52.193.0/24",
            "192.88.99.0/24",
            "192.175.48.0/24",
        ),
        *("64:ff9b:1::/48", "2001::/23", "2620:4f:8000::/48", "3fff::/20", "5f00::/16"),
    )
)
"""Public by their number, but what answers there is near: services of a cloud, of a router or of a protocol. Python's
lists differ from version to version."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_TRIED = 4
"""Addresses of a host that are tried."""
_ROOT = "a.root-servers.net"
"""Two answers of a silent resolver (10 s each) fit into the time that a page has, so it is asked for second."""
_RESOLVERS = ThreadPoolExecutor(32, thread_name_prefix="atommem-resolve")
"""Threads of their own: names whose servers are silent must not hold up the loop's other threads."""


def public(address: Address, port: int) -> bool:
    """The rule of the live web: a globally routable unicast address, and a port of the web."""
    return port in PORTS and _is_public(address)


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return _is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
        if (
            address.ipv4_mapped is not None
            or address.sixtofour is not None
            or address.teredo is not None
        ):
            return False  # no server of the web is reached so, and what is inside may be anything
        if address.is_site_local or address.scope_id is not None:
            return False
    if any(address in network for network in _NEVER):
        return False
    return address.is_global and not (
        address.is_multicast or address.is_reserved or address.is_unspecified
    )


async def resolve(host: str, port: int) -> Sequence[str]:
    """The system's answer. It knows every notation of an address that a connection would have understood."""
    loop = asyncio.get_running_loop()

    def ask() -> list[str]:
        return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]

    return list(dict.fromkeys(await loop.run_in_executor(_RESOLVERS, ask)))


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Connects to addresses that `rule` allows, and to no others.

    Args:
        rule: Which.
        private: Hosts with ports (``127.0.0.1:8080``) that are allowed although the rule forbids them.
        resolve: Makes addresses of names.
        backend: What connects.
        has_way: Whether this machine has a route to an address.

    Raises (of `connect_tcp`):
        PageError: The host has no address, or one that is not allowed.
        OutageError: Names cannot be resolved at all, or this machine reaches no network.
    """

    def __init__(
        self,
        rule: Rule = public,
        private: Collection[str] = (),
        resolve: Resolve = resolve,
        backend: httpcore.AsyncNetworkBackend | None = None,
        has_way: Callable[[Address], bool] | None = None,
    ) -> None:
        self._rule = rule
        self._private = frozenset(
            place.casefold().replace("[", "").replace("]", "") for place in private
        )
        self._resolve = resolve
        self._leads_to = has_way or _has_way
        self._backend = backend or httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to the first allowed address that takes one; none if any address is not allowed."""
        found = await self._addresses(host, port)
        if f"{host}:{port}" not in self._private and not all(
            self._rule(address, port) for address in found
        ):
            raise PageError(f"{host}:{port} is not on the public web.")
        trouble: httpcore.ConnectError | httpcore.ConnectTimeout | None = None
        for address in found[:_TRIED]:
            try:
                return await self._backend.connect_tcp(
                    str(address), port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                # A router far away may say the same of an address that nobody has: that is the page's.
                if (
                    address.version == 4
                    and _number(error) == errno.ENETUNREACH
                    and not self._leads_to(address)
                ):
                    raise OutageError(
                        f"this machine reaches no network: no way to {address} ({host})."
                    ) from error
                trouble = error
        assert trouble is not None
        raise trouble

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        """Never."""
        raise PageError("a file of this machine is no page.")

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def _addresses(self, host: str, port: int) -> list[Address]:
        try:
            try:
                texts = await self._resolve(host, port)
            except socket.gaierror as error:
                if error.errno != socket.EAI_AGAIN:
                    raise
                texts = await self._again(host, port)
            found = [ipaddress.ip_address(text) for text in texts]
        except socket.gaierror as error:
            raise PageError(f"there is no host {host}.") from error
        except (UnicodeError, ValueError) as error:
            raise PageError(f"{host!r} is no name of a host.") from error
        if not found:
            raise PageError(f"there is no host {host}.")
        return found

    async def _again(self, host: str, port: int) -> Sequence[str]:
        """A second answer for a name whose servers, or our resolver, were silent.

        Which of the two says the name of a root server, asked for at the same time: names that are not answered for
        are the easiest thing for a page to have, and a policy that could have outages by them would not be scored.
        """
        again, root = await asyncio.gather(
            self._resolve(host, port), self._resolve(_ROOT, port), return_exceptions=True
        )
        silent = [
            isinstance(said, socket.gaierror) and said.errno == socket.EAI_AGAIN
            for said in (again, root)
        ]
        if all(silent):
            raise OutageError(
                f"neither {host} nor {_ROOT} can be resolved now: check this machine's resolver."
            )
        if isinstance(again, BaseException):
            raise again
        return again


def _has_way(address: Address) -> bool:
    """Whether this machine knows a way to `address`; a datagram socket is not asked to send anything."""
    with socket.socket(
        socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM
    ) as probe:
        try:
            probe.connect((str(address), 9))
        except OSError:
            return False
    return True


def _number(error: BaseException) -> int | None:
    """The number of the `OSError` that is behind `error`, if there is one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            return cause.errno
        if isinstance(cause, BaseExceptionGroup):
            return _number(cause.exceptions[0])
        cause = cause.__cause__ or cause.__context__
    return None
