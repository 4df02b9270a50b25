"""The command `atommem web`: show a recording, or freeze it into a corpus."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from atommem.arguments import Command, Parser, make, run_command
from atommem.config import EMBEDDERS, EmbedderConfig
from atommem.envs.web.corpus import Page, build_corpus
from atommem.envs.web.recording import Recording
from atommem.errors import ConfigError, check_writable
from atommem.text_safety import clean, printable


def main(argv: list[str] | None = None) -> int:
    """Run ``atommem web``; returns the exit status."""
    commands = {
        "freeze": Command(_freeze, "make a corpus of the pages that were read (tools: [corpus])"),
        "show": Command(_show, "print how many calls are recorded"),
    }
    return run_command("atommem web", commands, sys.argv[1:] if argv is None else argv)


def recorded_pages(recording: Recording) -> Iterator[Page]:
    """Yield the last version of each page, with its requested address as id."""
    pages: dict[str, Page] = {}
    for arguments, result in recording.results():
        if result.is_error or not result.title:
            continue
        url = clean(result.origin or result.title)
        texts = (value for value in arguments.values() if isinstance(value, str))
        known = pages.get(url)
        name = known.id if known is not None and known.id != url else clean(next(texts, url))
        pages[url] = Page(clean(result.text), clean(result.title), url, name)
    yield from pages.values()


def _freeze(argv: list[str]) -> int:
    parser = Parser("atommem web freeze", "Make a corpus of the pages that were read.")
    parser.add_argument("recording", type=Path, metavar="RECORDING")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="The corpus.")
    parser.add_argument(
        "--embedder", choices=EMBEDDERS, help="For dense and hybrid search (default: words alone)."
    )
    parser.add_settings("embedder", EmbedderConfig, names=["embedder_model"])
    args = parser.parse_args(argv)
    check_writable("out", args.out, folder=True)
    recording = Recording(args.recording, read_only=True)
    pages = list(recorded_pages(recording))
    if not pages:
        raise ConfigError(f"{args.recording}: no page was read, there is nothing to freeze.")
    embedder = None if args.embedder is None else make(EmbedderConfig, args)
    built = build_corpus(pages, args.out, embedder)
    read = {name for page in pages for name in (page.url, page.id)}
    found = {link.target for _, result in recording.results() for link in result.links}
    recording.close()
    print(
        f"{args.out}: {built['pages']} pages. {len(found - read)} linked pages were never read."
    )
    return 0


def _show(argv: list[str]) -> int:
    parser = Parser("atommem web show", "Print how many calls are recorded.")
    parser.add_argument("recording", type=Path, metavar="RECORDING")
    recording = Recording(parser.parse_args(argv).recording, read_only=True)
    for tool, backend, count in recording.counts():
        print(f"{count:7,} {printable(tool)} of {printable(backend)}")
    recording.close()
    return 0
