"""The command `atommem corpus`: build a corpus of pages, and serve it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from tqdm import tqdm

from atommem.arguments import Command, Parser, given_flags, make, run_command
from atommem.config import EMBEDDERS, EmbedderConfig, check_choice, fields_of
from atommem.envs.web.corpus.corpus import MODES, PASSAGE_CHARACTERS, Corpus, build_corpus
from atommem.envs.web.corpus.pages import Page, read_pages
from atommem.envs.web.recording import Recording
from atommem.errors import ConfigError, check_writable
from atommem.text_safety import clean


def main(argv: list[str] | None = None) -> int:
    """Run ``atommem corpus``; returns the exit status."""
    commands = {
        "build": Command(_build, "make a corpus of files, or add files to one"),
        "serve": Command(_serve, "serve it over HTTP: /retrieve and /access"),
    }
    return run_command("atommem corpus", commands, sys.argv[1:] if argv is None else argv)


def recorded_pages(path: Path) -> Iterable[Page]:
    """Return the last version of each page in a recording, with its requested address as id.

    Raises:
        ConfigError: No page was read.
    """
    recording = Recording(path, read_only=True)
    pages: dict[str, Page] = {}
    for arguments, result in recording.results():
        if result.title and not result.is_error:
            url = clean(result.origin or result.title)
            requested = next((value for value in arguments.values() if isinstance(value, str)), url)
            pages[url] = Page(clean(result.text), clean(result.title), url, clean(requested))
    recording.close()
    if not pages:
        raise ConfigError(f"{path}: no page was read.")
    return pages.values()


def _build(argv: list[str]) -> int:
    parser = Parser("atommem corpus build", "Make a corpus of files, or add files to one.")
    rows = "JSON, JSON Lines or parquet; a row has text (or contents), and maybe title, url, id."
    parser.add_argument("--input", type=Path, nargs="+", required=True, metavar="FILE", help=rows)
    parser.add_argument(
        "--recording", action="store_true", help="Take the pages that recorded calls have read."
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="The corpus.")
    longest = "Longest passage in the index; pages are read whole (%(default)s)."
    parser.add_argument("--passage_characters", type=int, default=PASSAGE_CHARACTERS, help=longest)
    parser.add_argument(
        "--embedder", choices=EMBEDDERS, help="For dense and hybrid search (default: words alone)."
    )
    parser.add_settings("embedder", EmbedderConfig, leave_out=["embedder"])
    args = parser.parse_args(argv)
    check_writable("out", args.out, folder=True)
    embedder = None if args.embedder is None else make(EmbedderConfig, args)
    read: Callable[[Path], Iterable[Page]] = recorded_pages if args.recording else read_pages
    pages = (page for path in args.input for page in read(path))
    shown = tqdm(pages, "adding", unit="page", disable=None)
    done = build_corpus(shown, args.out, embedder, args.passage_characters)
    total = f"{done['pages']} pages in {done['passages']} passages"
    print(f"{args.out}: {done['added']} pages added; {total}.")
    if done["recall"] is not None:
        print(f"vector index: recall@10 {done['recall']:.3f} against exact search")
    return 0


def _serve(argv: list[str]) -> int:
    parser = Parser("atommem corpus serve", "Serve a corpus over HTTP.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="Folder of the corpus.")
    parser.add_argument("--host", default="127.0.0.1", help="Address to listen on (%(default)s).")
    parser.add_argument("--port", type=int, default=8000, help="Port (%(default)s).")
    parser.add_argument(
        "--mode", choices=MODES, help="Kind of search (default: hybrid if it has vectors)."
    )
    parser.add_settings("embedder", EmbedderConfig, leave_out=["embedder"])
    args = parser.parse_args(argv)
    import uvicorn

    from atommem.envs.web.corpus.serving import make_app

    corpus = Corpus(args.folder, fields_of(EmbedderConfig, given_flags(argv, args)))
    check_choice("mode", args.mode or corpus.modes[-1], corpus.modes)
    pages = corpus.pages.counts()["pages"]
    print(f"{args.folder}: {pages} pages at http://{args.host}:{args.port}", file=sys.stderr)
    uvicorn.run(make_app(corpus, args.mode), host=args.host, port=args.port, log_level="warning")
    return 0
