"""A process that reads what hostile hands may have written (HTML, PDF, text, robots.txt), and ends when its input does.

It runs as a script of its own, without the keys of its parent's environment, with bounded memory and without the right
to write files. Its parent kills it when it takes too long; an alarm ends it where the parent cannot.

Protocol: a length (4 bytes, big-endian) and a JSON request; a length and its body. Back: a length and a JSON answer,
either what was read or ``{"error": why not}``.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin

Answer = dict[str, Any]
_SPACES = re.compile(r"[ \t]*\n\s*\n\s*")


def main() -> int:
    """Answer requests until the input ends: arguments are megabytes of memory, and seconds for a request."""
    megabytes, seconds = int(sys.argv[1]), float(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    given, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # what a library prints is no answer
    while header := given.read(4):
        request = json.loads(given.read(int.from_bytes(header)))
        body = given.read(int.from_bytes(given.read(4)))
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            answer = _READERS[request.pop("kind")](body, **request)
        except Exception as error:  # whatever a parser makes of garbage
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        signal.setitimer(signal.ITIMER_REAL, 0)
        written = json.dumps(answer).encode()
        answers.write(len(written).to_bytes(4) + written)
        answers.flush()
    return 0


def read_html(body: bytes, url: str, charset: str, most: int, most_links: int) -> Answer:
    """Title, main text (the first `most` characters) and links of a page."""
    import trafilatura
    from lxml import html

    tree = _tree(body, charset)
    found: Any = trafilatura.bare_extraction(tree, url=url, with_metadata=True, deduplicate=False)
    title, text = "", ""
    if found is not None:
        title, text = found.title or "", found.text or ""
    tree = _tree(body, charset)
    if not text.strip():
        for node in tree.xpath("//script|//style|//noscript|//template"):
            node.drop_tree()
        text = html.HtmlElement.text_content(tree)
    title = title or " ".join((tree.findtext(".//title") or "").split())
    links: dict[str, str] = {}
    for anchor in tree.iterfind(".//a[@href]"):
        name = " ".join(anchor.text_content().split())[:200]
        target = ""
        with contextlib.suppress(ValueError):
            target = urljoin(url, anchor.get("href").strip()).partition("#")[0]
        if (
            name
            and target.startswith(("http://", "https://"))
            and target != url
            and target not in links
        ):
            links[target] = name
            if len(links) == most_links:
                break
    return {
        "title": title[:500],
        "text": _SPACES.sub("\n\n", text).strip()[:most],
        "links": list(links.items()),
    }


def _tree(body: bytes, charset: str) -> Any:
    from lxml import html
    from trafilatura.utils import decode_file

    if charset:
        with contextlib.suppress(LookupError, ValueError):
            text = body.decode(charset, errors="replace")
            return html.document_fromstring(text.encode(), parser=html.HTMLParser(encoding="utf-8"))
    return html.document_fromstring(
        decode_file(body).encode(), parser=html.HTMLParser(encoding="utf-8")
    )


def read_pdf(body: bytes, most: int, most_pages: int) -> Answer:
    """Title and text of a PDF's first pages."""
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(body))
    parts: list[str] = []
    length = 0
    for page in reader.pages[:most_pages]:
        parts.append(page.extract_text())
        length += len(parts[-1])
        if length > most:
            break
    title = reader.metadata.title if reader.metadata is not None else None
    return {"title": str(title or "")[:500], "text": "\n\n".join(parts).strip()[:most], "links": []}


def read_text(body: bytes, charset: str, most: int) -> Answer:
    """Plain text. Some of the codecs that a server may name take quadratic time, hence here."""
    try:
        text = body.decode(charset or "utf-8", errors="replace")
    except LookupError:
        text = body.decode(errors="replace")
    begin = text[:10_000]
    if sum(character == "\ufffd" or character < "\t" for character in begin) > len(begin) / 10:
        raise ValueError("it is not a text")
    return {"title": "", "text": text[:most].strip(), "links": []}


def read_robots(body: bytes, url: str, agent: str) -> Answer:
    """Whether a robots.txt lets `agent` read `url`. Its wildcards can be made to take for ever, hence here."""
    from protego import Protego

    return {"allowed": Protego.parse(body.decode("utf-8", errors="replace")).can_fetch(url, agent)}


_READERS: dict[str, Callable[..., Answer]] = {
    "html": read_html,
    "pdf": read_pdf,
    "text": read_text,
    "robots": read_robots,
}

if __name__ == "__main__":
    sys.exit(main())
