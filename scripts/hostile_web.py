"""A hostile internet on 127.0.0.2 and a private server on 127.0.0.1, for `bench_guard.py`."""

from __future__ import annotations

import gzip
import multiprocessing
import socket
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

Act = Callable[[socket.socket], None]
PROSE = b"<p>" + b"Ann Gray lives in Oakrest, where she makes bells. " * 20 + b"</p>"


def answer(body: bytes, kind: str = "text/html", status: str = "200 OK", **headers: str) -> Act:
    """A whole answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"Content-Type: {kind}"] if kind else []
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return lambda to: to.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


def leads(location: str, status: str = "302 Found") -> Act:
    """A redirect."""
    return answer(b"", status=status, Location=location)


def drips(first: bytes, then: bytes, wait: float = 0.2) -> Act:
    """Says something, then a little for ever."""

    def act(to: socket.socket) -> None:
        to.sendall(first)
        while True:
            to.sendall(then)
            time.sleep(wait)

    return act


def pdf(objects: list[bytes], trailer: bytes = b"/Root 1 0 R") -> bytes:
    """A PDF of these objects, with a right table of where they are."""
    made, places = b"%PDF-1.7\n", []
    for number, content in enumerate(objects, start=1):
        places.append(len(made))
        made += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    end = b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d %s >>\nstartxref\n%d\n%%%%EOF"
    return made + end % (len(objects) + 1, table, len(objects) + 1, trailer, len(made))


def stream(content: bytes, extra: bytes = b"") -> bytes:
    """A compressed stream."""
    packed = zlib.compress(content, 9)
    return b"<< /Length %d /Filter /FlateDecode %s >>\nstream\n%s\nendstream" % (
        len(packed),
        extra,
        packed,
    )


CATALOG = b"<< /Type /Catalog /Pages 2 0 R >>"
PAGE = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R >>"
ONE = [CATALOG, b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>", PAGE]
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
WILD = b"User-agent: *\nDisallow: /" + b"*a" * 40 + b"*b$\n"


def routes(private: int) -> dict[str, Act]:
    """What each path does; `private` is the port of the private server."""
    inside = f"127.0.0.1:{private}"
    begin = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
    chunked = begin + b"Transfer-Encoding: chunked\r\n\r\n"
    zeros = bytes(200_000_000)
    once = gzip.compress(zeros)
    pdf_kind = "application/pdf"
    return {
        "fine": answer(
            b"<html><title>Ann</title><body><article>" + PROSE * 3 + b"</article></body></html>"
        ),
        # redirects
        "to_private": leads(f"http://{inside}/"),
        "to_hex": leads(f"http://0x7f000001:{private}/", "301 Moved"),
        "to_short": leads(f"http://127.1:{private}/", "303 See Other"),
        "to_mapped": leads(f"http://[::ffff:127.0.0.1]:{private}/", "307 Temporary"),
        "to_relative": leads(f"//{inside}/", "308 Permanent"),
        "to_user": leads(f"http://127.0.0.2@{inside}/"),
        "to_name": leads(f"http://inside.test:{private}/"),
        "to_file": leads("file:///etc/passwd"),
        "to_gopher": leads(f"gopher://{inside}/_GET"),
        "to_data": leads("data:text/html,hello"),
        "to_nothing": leads("http://"),
        "chain": leads("chain"),
        "chain_in": leads("to_relative"),
        "denied": leads("https://huggingface.co/datasets/x"),
        # sizes
        "endless": drips(begin + b"\r\n", b"x" * 65536, 0),
        "announced": answer(b"x" * 3_000_000),
        "chunks": drips(chunked, b"10000\r\n" + b"x" * 65536 + b"\r\n", 0),
        "headers": drips(b"HTTP/1.1 200 OK\r\n", b"X-Header: " + b"x" * 9000 + b"\r\n", 0),
        "header": drips(b"HTTP/1.1 200 OK\r\nX-Header: ", b"x" * 9000, 0),
        "gzip": answer(once, Content_Encoding="gzip"),
        "twice": answer(gzip.compress(once), Content_Encoding="gzip, gzip"),
        "deflate": answer(zlib.compress(zeros), Content_Encoding="deflate"),
        "zstd": answer(b"\x28\xb5\x2f\xfd" * 99, Content_Encoding="zstd"),
        "crumbs": drips(chunked, b"1\r\nx\r\n" * 10_000, 0),
        "length": lambda to: to.sendall(begin + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nx"),
        # time
        "drip": drips(begin + b"\r\n", b"x"),
        "drip_headers": drips(b"HTTP/1.1 200 OK\r\n", b"A: b\r\n"),
        "drip_chunks": drips(chunked, b"1\r\nx\r\n"),
        "silent": lambda to: time.sleep(60),
        "early": drips(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n", 0.01),
        # types
        "image": answer(b"\x89PNG", "image/png"),
        "bytes": answer(b"MZ" * 999, "application/octet-stream"),
        "film": answer(b"....ftyp", "video/mp4"),
        "parts": answer(b"--x\r\n", "multipart/x-mixed-replace; boundary=x"),
        "binary": answer(bytes(range(256)) * 99, "text/plain"),
        "not_pdf": answer(b"<html>" + PROSE, pdf_kind),
        # text and HTML
        "type": answer(PROSE, 'text/html; x="' + ";" * 90_000),
        "punycode": answer(b"a" * 900_000 + b"-" + b"zz" * 40_000, "text/plain; charset=punycode"),
        "charset": answer(b"<html>" + PROSE, "text/html; charset=rot13"),
        "deep": answer(b"<div>" * 190_000),
        "table": answer(b"<table>" + b"<tr>" + b"<td><p>x</p></td>" * 110_000),
        "links": answer(b"".join(b'<a href="/%d">name %d</a>' % (n, n) for n in range(60_000))),
        "attributes": answer(b"<p " + b"".join(b"a%d=b " % n for n in range(120_000)) + b">x</p>"),
        "laughs": answer(
            f"<!DOCTYPE x [<!ENTITY l0 'ha'>{LAUGHS}]><p>&l11;</p>".encode(),
            "application/xhtml+xml",
        ),
        "entity": answer(
            b"<!DOCTYPE x [<!ENTITY f SYSTEM 'file:///etc/passwd'>]><p>&f;</p>",
            "application/xhtml+xml",
        ),
        "base": answer(b"<base href='file:///'><a href='etc/passwd'>x</a>" + PROSE),
        "nul": answer(b"<p>\x00</p>" * 100_000),
        # PDF
        "pdf_garbage": answer(b"%PDF-1.7\n" + b"<< " * 300_000, pdf_kind),
        "pdf_bomb": answer(pdf([*ONE, stream(bytes(900_000_000))]), pdf_kind),
        "pdf_text": answer(pdf([*ONE, stream(b"BT (x) Tj ET " * 3_000_000)]), pdf_kind),
        "pdf_kids": answer(
            pdf([CATALOG, b"<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 9 >>"]), pdf_kind
        ),
        "pdf_parent": answer(
            pdf([CATALOG, b"<< /Type /Pages /Kids [3 0 R] /Parent 3 0 R >>", PAGE, b"4 0 R"]),
            pdf_kind,
        ),
        "pdf_prev": answer(pdf(ONE, b"/Root 1 0 R /Prev 9"), pdf_kind),
        "pdf_many": answer(
            pdf(
                [
                    CATALOG,
                    b"<< /Type /Pages /Kids [" + b"3 0 R " * 200_000 + b"] /Count 200000 >>",
                    PAGE,
                    stream(b"x"),
                ]
            ),
            pdf_kind,
        ),
        "pdf_locked": answer(pdf(ONE, b"/Root 1 0 R /Encrypt << /Filter /None /V 9 >>"), pdf_kind),
        # robots.txt, of the names that lead here
        "wild/robots.txt": answer(WILD, "text/plain"),
        "long/robots.txt": answer(b"User-agent: *\nDisallow: /x\n" * 50_000, "text/plain"),
        "slow/robots.txt": drips(begin + b"\r\n", b"#"),
        "moved/robots.txt": leads(f"http://{inside}/"),
    }


def _serve(ready: Any, hits: Any) -> None:
    def listen(address: str, act: Callable[[socket.socket, str], None]) -> int:
        server = socket.create_server((address, 0), backlog=64)

        def accept() -> None:
            while True:
                connection, _ = server.accept()
                threading.Thread(target=handle, args=(connection,), daemon=True).start()

        def handle(connection: socket.socket) -> None:
            with connection:
                try:
                    request = connection.recv(65536).decode("latin-1")
                    act(connection, request)
                except OSError:
                    return  # whoever asked has gone

        threading.Thread(target=accept, daemon=True).start()
        return int(server.getsockname()[1])

    def private(to: socket.socket, request: str) -> None:
        with hits.get_lock():
            hits.value += 1
        answer(b"secret")(to)

    def public(to: socket.socket, request: str) -> None:
        path = request.split(" ")[1].lstrip("/") if request.count(" ") > 1 else "silent"
        if path == "robots.txt":
            host = next(line for line in request.split("\r\n") if line.lower().startswith("host:"))
            path = f"{host.split(':')[1].strip().removesuffix('.test')}/robots.txt"
        known.get(path, answer(b"", status="404 Not Found"))(to)

    inside = listen("127.0.0.1", private)
    known = routes(inside)
    ready.put((inside, listen("127.0.0.2", public)))
    threading.Event().wait()


class HostileWeb:
    """Both servers in a process of their own."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        ready = context.Queue()
        self._hits = context.Value("i", 0)
        self._process = context.Process(target=_serve, args=(ready, self._hits), daemon=True)
        self._process.start()
        self.private, self.public = ready.get(timeout=60)

    @property
    def hits(self) -> int:
        """How often the private server was reached."""
        return int(self._hits.value)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.join()
