"""Bar: of 80 hostile pages and addresses none gets through the guard, in bounded time and memory.

    python scripts/bench_guard.py [--quick]

The reader `direct` is given URLs as a policy may write them, and pages as they may lie on the web. 127.0.0.2 plays the
internet and 127.0.0.1 what is private; the guard's rule and its resolver are told so, and connections go through a
watch that lets none out of this machine. So the list of public ranges itself is not what is tried here, but in
tests/envs/web/net/test_fetcher.py. Of a case it is asked that

- no connection to anything but 127.0.0.2 is begun, and the private server hears nothing;
- an address, redirect, size, time or type that is refused is an observation that says so (`refused`), and a page that
  may be read in spite of all (malformed HTML, PDF and robots.txt) is read or refused;
- it ends within the limits of a page and of reading one (`page_seconds`, `parse_seconds`) and a second;
- this process grows by less than 100 MB over all of them, and a reading process, whose limit is `parse_megabytes`,
  stays below (`largest_reader_mb`, of those that were not killed);
- and an ordinary page is read after it.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import httpcore
from hostile_web import HostileWeb
from peak_memory import peak_megabytes
from quick import add_quick, command_line, last_line
from stalls import heartbeat

from atommem.environment import environment_config
from atommem.envs.web.net.guard import Address
from atommem.envs.web.net.reader_tools import Direct

MOST_GROWTH_MB = 100
PAGE_SECONDS, PARSE_SECONDS, PARSE_MB = 2.0, 3.0, 1024
PRIVATE = (
    "127.0.0.1 127.1 127.0.1 0x7f.0.0.1 0x7f000001 2130706433 017700000001 0177.0.0.1 0 0.0.0.0 127.0.0.1. "
    "localhost LOCALHOST ①②⑦.⓪.⓪.① 127。0。0。1 %31%32%37.0.0.1 [::1] [::] [::ffff:127.0.0.1] [::ffff:7f00:1] "
    "[::127.0.0.1] [64:ff9b::7f00:1] [2002:7f00:1::] [fe80::1%25lo] 169.254.169.254 10.0.0.1 172.16.0.1 "
    "192.168.0.1 100.64.0.1 224.0.0.1 user@127.0.0.1 127.0.0.2@127.0.0.1 127.0.0.2%2f@127.0.0.1"
)
NAMES = {
    "localhost": ["127.0.0.1"],
    "inside.test": ["127.0.0.1"],
    "mixed.test": ["127.0.0.2", "127.0.0.1"],
    "six.test": ["127.0.0.2", "::1"],
    "metadata.test": ["169.254.169.254"],
    "mapped.test": ["::ffff:127.0.0.1"],
    "nothing.test": [],
    "nonsense.test": ["no address"],
    "good.test": ["127.0.0.2"],
    **{f"{name}.test": ["127.0.0.2"] for name in ("wild", "long", "slow", "moved")},
}
SCHEMES = (
    "file:///etc/passwd",
    "ftp://127.0.0.2/",
    "gopher://127.0.0.1/",
    "javascript:alert(1)",
    "http+unix://%2Fvar/x",
)
REFUSED = (
    "to_private to_hex to_short to_mapped to_relative to_user to_name to_file to_gopher to_data to_nothing "
    "chain chain_in denied endless announced chunks crumbs headers header gzip twice deflate zstd length drip "
    "drip_headers drip_chunks silent early image bytes film parts binary not_pdf pdf_garbage pdf_bomb pdf_kids "
    "pdf_locked"
)
READ_OR_REFUSED = "type punycode charset deep table links attributes laughs entity base nul pdf_text pdf_parent pdf_prev pdf_many"
ROBOTS = ("wild", "long", "slow", "moved")


class Watch(httpcore.AsyncNetworkBackend):
    """Connects within this machine only, and notes what to."""

    def __init__(self) -> None:
        self.connected: list[str] = []
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self, host: str, port: int, *arguments: Any, **settings: Any
    ) -> httpcore.AsyncNetworkStream:
        """A connection to 127.x."""
        self.connected.append(host)
        if not host.startswith("127."):
            raise httpcore.ConnectError("this would have left the machine")
        return await self._backend.connect_tcp(host, port, *arguments, **settings)


class TestResolver:
    """Knows `NAMES`, numbers as the system reads them, and a name with another answer each time."""

    def __init__(self) -> None:
        self.rebound = 0

    async def __call__(self, host: str, port: int) -> list[str]:
        """The addresses."""
        if host == "rebinding.test":
            self.rebound += 1
            return ["127.0.0.2" if self.rebound % 2 else "127.0.0.1"]
        if (name := host.lower()) in NAMES:
            return NAMES[name]
        try:
            found = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
        except (socket.gaierror, UnicodeError):
            raise socket.gaierror(socket.EAI_NONAME, "no such name") from None
        return [str(info[4][0]) for info in found]


def cases(web: HostileWeb) -> list[tuple[str, str, bool]]:
    """Name and URL of each case, and whether it must be refused."""
    host = f"127.0.0.2:{web.public}"
    found = [(f"address {host}", f"http://{host}:{web.private}/", True) for host in PRIVATE.split()]
    names = ("inside", "mixed", "six", "metadata", "mapped", "nothing", "nonsense")
    found += [(f"name {name}", f"http://{name}.test:{web.private}/", True) for name in names]
    found += [("name rebinding", f"http://rebinding.test:{web.public}/chain_in", True)]
    found += [(f"scheme {url}", url, True) for url in SCHEMES]
    found += [
        ("port 22", "http://127.0.0.2:22/", True),
        ("tls to a server without", f"https://{host}/silent", True),
    ]
    found += [(path, f"http://{host}/{path}", True) for path in REFUSED.split()]
    found += [(path, f"http://{host}/{path}", False) for path in READ_OR_REFUSED.split()]
    found += [
        (f"robots {name}", f"http://{name}.test:{web.public}/fine", name == "slow")
        for name in ROBOTS
    ]
    return found


async def run(quick: bool) -> dict[str, Any]:
    """All cases one after another, each with an ordinary page after it."""
    web, watch = HostileWeb(), Watch()

    def rule(address: Address, port: int) -> bool:
        return str(address) == "127.0.0.2" and port != 22

    config = environment_config(
        "web",
        page_megabytes=2.0,
        page_seconds=PAGE_SECONDS,
        parse_seconds=PARSE_SECONDS,
        parse_megabytes=PARSE_MB,
        parse_workers=1,
    )
    reader = Direct(config, rule=rule, resolve=TestResolver())
    reader._fetcher._guard._backend = watch
    visit = reader.tools[0].run
    fine = {"page": f"http://good.test:{web.public}/fine"}
    todo = cases(web)[:: 12 if quick else 1]
    through, slow, after, slowest, largest = [], [], [], 0.0, 0.0
    try:
        assert not (await visit(fine, None)).is_error
        grown = peak_megabytes()
        async with heartbeat() as beats:
            for name, url, refused in todo:
                hits, watch.connected = web.hits, []
                began = time.perf_counter()
                result = await visit({"page": url}, None)
                seconds = time.perf_counter() - began
                slowest = max(slowest, seconds)
                # robots.txt and the page each have their time, and each is read.
                if seconds > 2 * (PAGE_SECONDS + PARSE_SECONDS) + 1:
                    slow.append(name)
                if (
                    web.hits > hits
                    or set(watch.connected) - {"127.0.0.2"}
                    or (refused and not result.is_error)
                ):
                    through.append(name)
                if "root:" in result.text:
                    through.append(name)
                reading = reader._extraction._idle.queue[0]
                largest = max(largest, 0.0 if reading is None else peak_megabytes(reading.pid))
                if (await visit(fine, None)).is_error:
                    after.append(name)
                print(
                    f"{seconds:6.2f} s  {name}: {'refused: ' if result.is_error else ''}{result.text[:90]!r}",
                    flush=True,
                )
            grown = peak_megabytes() - grown
    finally:
        await reader.close()
        web.close()
    return {
        "cases": len(todo),
        "through": through,
        "too_slow": slow,
        "nothing_read_after": after,
        "slowest_seconds": round(slowest, 2),
        "growth_mb": round(grown),
        "largest_reader_mb": round(largest),
        "largest_stall_ms": round(1000 * max(beats.stalls), 1),
        "holds": len(todo) >= 80
        and not through
        and not slow
        and not after
        and grown < MOST_GROWTH_MB
        and largest < PARSE_MB,
    }


def main() -> int:
    """Try all cases, print a line for each and the JSON line."""
    parser = command_line(__doc__)
    add_quick(parser)
    result = asyncio.run(run(parser.parse_args().quick))
    return last_line(result)


if __name__ == "__main__":
    raise SystemExit(main())
