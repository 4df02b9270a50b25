"""An internet on 127.0.0.2 and providers on 127.0.0.1: no packet leaves this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

import httpx

from atommem.envs.web.net.guard import Address
from tests.loopback import Quiet, Route, answering, listening

INTERNET = "127.0.0.2"


def on_loopback(address: Address, port: int) -> bool:
    """Allow 127.0.0.2 only."""
    return address == ip_address(INTERNET)


@contextmanager
def serving(
    routes: Mapping[str, Route], address: str = INTERNET
) -> Iterator[tuple[str, list[Any]]]:
    """Yield the host:port of a server, and its requests: (method and path, headers, body)."""
    asked: list[Any] = []

    class Handler(Quiet):
        def do_GET(self) -> None:  # noqa: N802  # the name that http.server calls
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked.append(
                (f"{self.command} {self.path}", httpx.Headers(dict(self.headers.items())), body)
            )
            path = self.path.partition("?")[0]
            routes.get(path, answering("no such page", status=404))(self, body)

        do_POST = do_GET  # noqa: N815

    with listening(Handler, address) as host:
        yield host, asked


def resolver(names: Mapping[str, list[str]]) -> Any:
    """Return a resolver of these names and of numbers."""

    async def resolve(host: str, port: int) -> list[str]:
        if host in names:
            return names[host]
        try:
            return [str(socket.getaddrinfo(host, port, flags=socket.AI_NUMERICHOST)[0][4][0])]
        except socket.gaierror:
            raise socket.gaierror(socket.EAI_NONAME, "no such name") from None

    return resolve
