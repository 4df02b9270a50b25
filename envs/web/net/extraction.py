"""Read HTML, PDF, plain text and robots.txt in worker processes with bounded time and memory.

The workers import this module: it must not import anything heavy at the top."""

import html
import io
import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urljoin

from anyio import BrokenWorkerProcess, CapacityLimiter, to_process

from atommem.documents import decode_declared
from atommem.envs.web.tools import Link, PageError
from atommem.errors import OutageError

_MAX_WORKERS = 8
_MAX_SOURCE = 3_000_000  # characters of a page without its scripts
_MAX_LINKS = 100
_MAX_PDF_PAGES = 200
_GUESSED = 2000  # bytes from which the guess of an encoding is good
_SCRIPT = re.compile(r"<(script|style)\b.*?</\1\s*>", re.IGNORECASE | re.DOTALL)
_REFRESH = re.compile(
    r"""\s*[0-5](?:\.\d*)?\s*[;,\s]\s*(?:url\s*=\s*)?(["']?)(.+?)\1\s*""", re.IGNORECASE
)
_CONTROL = re.compile(r"&#(?:1[2-5]\d|[xX][89][0-9a-fA-F]);")  # in browsers of windows-1252
_AROUND = " or ".join(f"ancestor::{name}" for name in ("a", "nav", "header", "footer", "aside"))
_PROSE = f"//body//text()[normalize-space()][not({_AROUND})]"
_BLANK_LINES = re.compile(r"[ \t]*\n\s*\n\s*")
_Value = TypeVar("_Value")


class Extracted(NamedTuple):
    """What a page says; `refresh` is the address of the page that replaces it at once."""

    title: str
    text: str
    links: tuple[Link, ...] = ()
    refresh: str = ""


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
            limits = "{:g} seconds and {} MB".format(*self._limits)
            raise PageError(f"the page cannot be read in {limits}.") from error
        except Exception as error:  # parsers raise anything on malformed input
            raise PageError(f"the page cannot be read: {type(error).__name__}: {error}.") from error


def _run_limited(
    seconds: float, megabytes: int, function: Callable[..., _Value], *args: Any
) -> _Value:
    import resource

    import protego  # noqa: F401  # imports do not count as time of the first page
    import pypdf  # noqa: F401
    import trafilatura  # noqa: F401

    resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
    signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF ends the process
    try:
        return function(*args)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def read_html(body: bytes, url: str, charset: str | None) -> Extracted:
    import trafilatura

    page = _SCRIPT.sub("", _decode(body, charset, is_html=True))
    page = _CONTROL.sub(lambda found: html.unescape(found[0]), page)
    source = page[:_MAX_SOURCE].strip().encode() or b"<p></p>"
    tree = _parse(source)
    found: Any = trafilatura.bare_extraction(tree, url=url, with_metadata=True, deduplicate=False)
    title, text = ("", "") if found is None else (found.title or "", found.text or "")
    tree = _parse(source)  # trafilatura changes its tree
    for meta in tree.iterfind(".//meta[@http-equiv][@content]"):
        delay = _REFRESH.fullmatch(meta.get("content"))
        if meta.get("http-equiv").strip().lower() == "refresh" and delay is not None:
            refresh = urljoin(url, delay[2])
            if refresh.startswith(("http://", "https://")) and refresh != url:
                return Extracted(title, text, refresh=refresh)
    posts = [trafilatura.html2txt(one) for one in tree.xpath("//article[not(ancestor::article)]")]
    held = [_letters(post)[:60] in _letters(text) for post in posts]
    if sum(held) < len(posts) / 2:  # of a forum the first alone may be found
        text = "\n\n".join(posts)
    elif found is not None and found.comments:
        text += f"\n\n{found.comments}"
    if len(text) < sum(map(len, tree.xpath(_PROSE))) / 2:
        text = trafilatura.html2txt(tree)
    title = title or " ".join((tree.findtext(".//title") or "").split())
    links: dict[str, str] = {}
    for anchor in tree.iterfind(".//a[@href]"):
        name, target = " ".join(anchor.text_content().split()), ""
        with suppress(ValueError):
            target = urljoin(url, anchor.get("href").strip()).partition("#")[0]
        if name and target.startswith(("http://", "https://")) and target != url:
            links.setdefault(target, name)
    text = _BLANK_LINES.sub("\n\n", text).strip()
    if len(links) > _MAX_LINKS:
        text += f"\n\n[{len(links) - _MAX_LINKS:,} more links are left out]"
    if len(page) > _MAX_SOURCE:
        text += f"\n\n[cut here: {len(page) - _MAX_SOURCE:,} more characters of HTML]"
    shown = tuple(Link(name, target) for target, name in islice(links.items(), _MAX_LINKS))
    return Extracted(title, text, shown)


def _letters(text: str) -> str:
    return "".join(text.split())


def _parse(source: bytes) -> Any:
    from lxml.html import HTMLParser, document_fromstring

    tree = document_fromstring(source, parser=HTMLParser(encoding="utf-8"))
    for element in tree.xpath("//body//*[@hidden and @hidden != 'until-found']"):
        element.drop_tree()
    return tree


def read_pdf(body: bytes) -> Extracted:
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(body))
    title = reader.metadata.title if reader.metadata is not None else None
    count = len(reader.pages)
    texts = [page.extract_text() for page in reader.pages[:_MAX_PDF_PAGES]]
    empty = [str(number) for number, text in enumerate(texts, 1) if not text.strip()]
    if 0 < len(empty) < len(texts):
        texts.append(f"[pages without text: {', '.join(empty)}]")
    if count > _MAX_PDF_PAGES:
        texts.append(f"[cut here: {count - _MAX_PDF_PAGES} more of {count} pages]")
    return Extracted(str(title or ""), "\n\n".join(texts).strip())


def read_text(body: bytes, charset: str | None, is_html: bool = False) -> Extracted:
    return Extracted("", _decode(body, charset, is_html).strip())


def is_allowed_by_robots(rules: bytes, url: str, agent: str) -> bool:
    from protego import Protego

    return bool(Protego.parse(rules.decode("utf-8-sig", errors="replace")).can_fetch(url, agent))


def _decode(body: bytes, charset: str | None, is_html: bool) -> str:
    from trafilatura.utils import detect_encoding

    if (declared := decode_declared(body, charset or "", is_html)) is not None:
        return declared[0]
    with suppress(UnicodeDecodeError):
        return body.decode()
    words = re.sub(rb"<[^>]*>", b"", body[:100_000])
    is_guessed = len(words) >= _GUESSED or sum(byte > 127 for byte in words) > 0.2 * len(words)
    guesses = detect_encoding(words) if is_guessed else []
    return body.decode(guesses[0] if guesses else "cp1252", "replace")  # as browsers
