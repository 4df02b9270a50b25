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

from atommem.documents import decode_declared
from atommem.envs.web.tools import Link, PageError
from atommem.errors import OutageError

_MAX_WORKERS = 8
_MAX_SOURCE = 3_000_000  # characters of a page without its scripts
_MAX_TEXT = 500_000
_MAX_LINKS = 100
_MAX_PDF_PAGES = 200
_SCRIPT = re.compile(r"<(script|style)\b.*?</\1\s*>", re.IGNORECASE | re.DOTALL)
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

    page = _SCRIPT.sub("", _decode(body, charset))
    source = page[:_MAX_SOURCE].strip().encode() or b"<p></p>"
    tree = _parse(source)
    found: Any = trafilatura.bare_extraction(tree, url=url, with_metadata=True, deduplicate=False)
    title, text = ("", "") if found is None else (found.title or "", found.text or "")
    tree = _parse(source)  # trafilatura changes its tree
    articles = tree.xpath("//article[not(ancestor::article)]")
    posts = "\n\n".join(map(trafilatura.html2txt, articles))  # of a forum: the first alone is found
    if len(articles) > 1 and len(text) < len(posts) / 2:
        text = posts
    elif found is not None and found.comments:
        text += f"\n\n{found.comments}"
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
    text = _cut(_BLANK_LINES.sub("\n\n", text).strip())
    if len(page) > _MAX_SOURCE:
        text += f"\n\n[cut here: {len(page) - _MAX_SOURCE:,} more characters of HTML]"
    return title, text, tuple(Link(name, target) for target, name in links.items())


def _parse(source: bytes) -> Any:
    from lxml import html

    tree = html.document_fromstring(source, parser=html.HTMLParser(encoding="utf-8"))
    for element in tree.xpath("//body//*[@hidden]"):
        element.drop_tree()
    return tree


def read_pdf(body: bytes) -> Extracted:
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(body))
    title = reader.metadata.title if reader.metadata is not None else None
    text, count = "", len(reader.pages)
    for number in range(count):
        if number == _MAX_PDF_PAGES or len(text) > _MAX_TEXT:
            text = f"{text[:_MAX_TEXT]}[cut here: {count - number} more of {count} pages]"
            break
        text += reader.pages[number].extract_text() + "\n\n"
    return str(title or ""), text.strip(), ()


def read_text(body: bytes, charset: str | None) -> Extracted:
    return "", _cut(_decode(body, charset, is_html=False).strip()), ()


def is_allowed_by_robots(rules: bytes, url: str, agent: str) -> bool:
    from protego import Protego

    return bool(Protego.parse(rules.decode("utf-8-sig", errors="replace")).can_fetch(url, agent))


def _cut(text: str) -> str:
    more = len(text) - _MAX_TEXT
    return text if more <= 0 else f"{text[:_MAX_TEXT]}\n\n[cut here: {more:,} more characters]"


def _decode(body: bytes, charset: str | None, is_html: bool = True) -> str:
    from trafilatura.utils import decode_file

    declared = decode_declared(body, charset, is_html)
    return str(decode_file(body)) if declared is None else declared[0]
