"""Read HTML, PDF, plain text and robots.txt in worker processes with bounded time and memory.

The workers import this module: it must not import anything heavy at the top."""

import io
import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urljoin

from anyio import BrokenWorkerProcess, CapacityLimiter, to_process

from atommem.envs.web.tools import Link, PageError
from atommem.errors import OutageError

_MAX_WORKERS = 8
_MAX_BYTES = 1_000_000
_MAX_TEXT = 500_000
_MAX_LINKS = 100
_MAX_PDF_PAGES = 200
_BLANK_LINES = re.compile(r"[ \t]*\n\s*\n\s*")
_Value = TypeVar("_Value")
Extracted = tuple[str, str, tuple[Link, ...]]  # title, text and links of a page


class Extraction:
    """Runs functions on documents in worker processes, within CPU time and address space.

    A signal ends the worker, even inside a C library.
    """

    def __init__(self, seconds: float, megabytes: int) -> None:
        self._limiter = CapacityLimiter(min(os.cpu_count() or 1, _MAX_WORKERS))
        self._limits = seconds, megabytes

    async def run(self, function: Callable[..., _Value], *arguments: Any) -> _Value:
        """Return `function(*arguments)`, computed in a worker.

        PageError: it fails, or exceeds its time or memory. OutageError: no worker can be started.
        """
        try:
            return await to_process.run_sync(
                _run_limited, *self._limits, function, *arguments, limiter=self._limiter
            )
        except BrokenWorkerProcess as error:
            if error.args:  # it did not start
                raise OutageError(
                    "No process for reading pages starts. A script that uses `tools: direct` must "
                    "guard its main part by `if __name__ == '__main__':`."
                ) from error
            seconds, megabytes = self._limits
            raise PageError(
                f"the page cannot be read in {seconds:g} seconds and {megabytes} MB."
            ) from error
        except Exception as error:  # parsers raise anything on malformed input
            raise PageError(
                f"the page cannot be read ({type(error).__name__}: {error})."
            ) from error


def _run_limited(
    seconds: float, megabytes: int, function: Callable[..., _Value], *arguments: Any
) -> _Value:
    import resource

    import protego  # noqa: F401  # imports do not count as time of the first page
    import pypdf  # noqa: F401
    import trafilatura  # noqa: F401

    resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
    signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF ends the process
    try:
        return function(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def read_html(body: bytes, url: str, charset: str | None) -> Extracted:
    import trafilatura
    from lxml import html

    source = _decode(body[:_MAX_BYTES], charset).encode()
    parser = html.HTMLParser(encoding="utf-8")
    tree = html.document_fromstring(source, parser=parser)
    found: Any = trafilatura.bare_extraction(tree, url=url, with_metadata=True, deduplicate=False)
    title, text = ("", "") if found is None else (found.title or "", found.text or "")
    tree = html.document_fromstring(source, parser=parser)  # trafilatura changes its tree
    title = title or " ".join((tree.findtext(".//title") or "").split())
    links: dict[str, str] = {}
    for anchor in tree.iterfind(".//a[@href]"):
        name, target = " ".join(anchor.text_content().split()), ""
        with suppress(ValueError):
            target = urljoin(url, anchor.get("href").strip()).partition("#")[0]
        if name and target.startswith(("http://", "https://")) and target != url:
            links.setdefault(target, name)
        if len(links) == _MAX_LINKS:
            break
    text = text or trafilatura.html2txt(tree)
    text = _BLANK_LINES.sub("\n\n", text).strip()[:_MAX_TEXT]
    return title, text, tuple(Link(name, target) for target, name in links.items())


def read_pdf(body: bytes) -> Extracted:
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(body))
    title = reader.metadata.title if reader.metadata is not None else None
    text = ""
    for page in reader.pages[:_MAX_PDF_PAGES]:
        text += page.extract_text() + "\n\n"
        if len(text) > _MAX_TEXT:
            break
    return str(title or ""), text.strip()[:_MAX_TEXT], ()


def read_text(body: bytes, charset: str | None) -> Extracted:
    return "", _decode(body[:_MAX_BYTES], charset or "utf-8").strip()[:_MAX_TEXT], ()


def is_allowed_by_robots(rules: bytes, url: str, agent: str) -> bool:
    from protego import Protego

    return bool(Protego.parse(rules.decode("utf-8", errors="replace")).can_fetch(url, agent))


def _decode(body: bytes, charset: str | None) -> str:
    from trafilatura.utils import decode_file

    with suppress(LookupError):
        if charset:
            return body.decode(charset, errors="replace")
    return str(decode_file(body))
