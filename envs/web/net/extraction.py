"""Read HTML, PDF, plain text and robots.txt in worker processes that a time limit ends.

The module is imported by the workers: it must not import anything heavy at the top.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import multiprocessing
import os
import re
import signal
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from queue import LifoQueue
from typing import Any, TypeVar
from urllib.parse import urljoin

from atommem.envs.web.tools import LONGEST_TEXT, Link, PageError
from atommem.errors import OutageError

_MAX_HTML_BYTES = 1_000_000
_MAX_LINKS = 100
_MAX_PDF_PAGES = 200
_BLANK_LINES = re.compile(r"[ \t]*\n\s*\n\s*")
_Value = TypeVar("_Value")
Extracted = tuple[str, str, tuple[Link, ...]]
"""Title, text and links of a page."""


class Extraction:
    """A few worker processes, each of which reads one document at a time.

    Args:
        workers: Number of processes.
        seconds: CPU time of a document. A signal ends the worker, even inside a C library.
        megabytes: Address space of a worker.
    """

    def __init__(self, workers: int = 2, seconds: float = 10.0, megabytes: int = 1024) -> None:
        self._seconds = seconds
        self._megabytes = megabytes
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="atommem-extract")
        self._idle: LifoQueue[ProcessPoolExecutor | None] = LifoQueue()
        for _ in range(workers):
            self._idle.put(None)

    async def run(self, function: Callable[..., _Value], *arguments: Any) -> _Value:
        """Return `function(*arguments)`, computed in a worker.

        Raises:
            PageError: The function fails, or exceeds its time or memory.
            OutageError: No worker can be started.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._run, function, *arguments)

    def close(self) -> None:
        """Stop the workers after their current document."""
        self._threads.shutdown()
        while not self._idle.empty():
            if (pool := self._idle.get()) is not None:
                pool.shutdown()

    def _run(self, function: Callable[..., _Value], *arguments: Any) -> _Value:
        pool = self._idle.get()
        try:
            if pool is None:
                pool = self._start()
            future: Future[_Value] = pool.submit(_limited, self._seconds, function, *arguments)
            return future.result()
        except BrokenProcessPool as error:
            pool = None
            raise PageError(
                f"the page cannot be read in {self._seconds:g} seconds and {self._megabytes} MB."
            ) from error
        except OutageError:
            raise
        except Exception as error:  # parsers raise anything on malformed input
            why = f"{type(error).__name__}: {error}"[:300]
            raise PageError(f"the page cannot be read ({why}).") from error
        finally:
            self._idle.put(pool)

    def _start(self) -> ProcessPoolExecutor:
        pool = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), _limit_worker, (self._megabytes,)
        )
        try:
            pool.submit(os.getpid).result()
        except (OSError, BrokenProcessPool) as error:
            raise OutageError(
                "No worker process for reading pages can be started. A script that uses "
                "`tools: direct` must guard its main part by `if __name__ == '__main__':`."
            ) from error
        return pool


def _limit_worker(megabytes: int) -> None:
    import resource

    import protego  # noqa: F401  # imports do not count as time of the first page
    import pypdf  # noqa: F401
    import trafilatura  # noqa: F401

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the parent
    resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))


def _limited(seconds: float, function: Callable[..., _Value], *arguments: Any) -> _Value:
    signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF ends the process
    try:
        return function(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def read_html(body: bytes, url: str, charset: str) -> Extracted:
    """Return title, main text and links of a page."""
    import trafilatura
    from lxml import html

    tree = _parse_html(body[:_MAX_HTML_BYTES], charset)
    found: Any = trafilatura.bare_extraction(tree, url=url, with_metadata=True, deduplicate=False)
    title, text = ("", "") if found is None else (found.title or "", found.text or "")
    tree = _parse_html(body[:_MAX_HTML_BYTES], charset)  # trafilatura changes its tree
    if not text.strip():
        for node in tree.xpath("//script|//style|//noscript|//template"):
            node.drop_tree()
        text = html.HtmlElement.text_content(tree)
    title = title or " ".join((tree.findtext(".//title") or "").split())
    links: dict[str, str] = {}
    for anchor in tree.iterfind(".//a[@href]"):
        name, target = " ".join(anchor.text_content().split())[:200], ""
        with contextlib.suppress(ValueError):
            target = urljoin(url, anchor.get("href").strip()).partition("#")[0]
        if name and target.startswith(("http://", "https://")) and target != url:
            links.setdefault(target, name)
        if len(links) == _MAX_LINKS:
            break
    text = _BLANK_LINES.sub("\n\n", text).strip()[:LONGEST_TEXT]
    return title[:500], text, tuple(Link(name, target) for target, name in links.items())


def _parse_html(body: bytes, charset: str) -> Any:
    from lxml import html
    from trafilatura.utils import decode_file

    try:
        text = body.decode(charset, errors="replace") if charset else decode_file(body)
    except (LookupError, ValueError):
        text = decode_file(body)
    return html.document_fromstring(text.encode(), parser=html.HTMLParser(encoding="utf-8"))


def read_pdf(body: bytes) -> Extracted:
    """Return title and text of a PDF's first pages."""
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(body))
    text = ""
    for page in reader.pages[:_MAX_PDF_PAGES]:
        text += page.extract_text() + "\n\n"
        if len(text) > LONGEST_TEXT:
            break
    title = reader.metadata.title if reader.metadata is not None else None
    return str(title or "")[:500], text.strip()[:LONGEST_TEXT], ()


def read_text(body: bytes, charset: str) -> Extracted:
    """Return plain text."""
    body = body[:_MAX_HTML_BYTES]
    try:
        text = body.decode(charset or "utf-8", errors="replace")
    except LookupError:
        text = body.decode(errors="replace")
    start = text[:10_000]
    if sum(char == "\ufffd" or char < "\t" for char in start) > len(start) / 10:
        raise ValueError("not a text")
    return "", text[:LONGEST_TEXT].strip(), ()


def is_allowed_by_robots(rules: bytes, url: str, agent: str) -> bool:
    """Return whether a robots.txt allows `agent` to read `url`."""
    from protego import Protego

    return bool(Protego.parse(rules.decode("utf-8", errors="replace")).can_fetch(url, agent))
