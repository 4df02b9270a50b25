"""The command `atommem corpus`: build a corpus of pages, search it, and serve it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from functools import partial
from itertools import chain
from pathlib import Path

from tqdm import tqdm

from atommem.command_line import CommandParser, add_flags, check_writable, given_flags
from atommem.config import EMBEDDERS, EmbedderConfig, check_choice, check_least
from atommem.envs.benchmarks.registry import BENCHMARKS
from atommem.envs.web.corpus.corpus import MODES, PASSAGE_CHARACTERS, Corpus, build_corpus
from atommem.envs.web.corpus.pages import benchmark_pages, read_pages
from atommem.text_safety import printable


def main(argv: list[str] | None = None) -> int:
    """Run ``atommem corpus ...``; returns the exit status.

    Raises:
        AtomMemError: A setting is wrong, a file is missing or damaged, or the address is taken.
    """
    args = _parser().parse_args(argv)
    return int(args.run(args))


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="atommem corpus", description=__doc__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="make a corpus of files, or add them to one")
    build.add_argument(
        "--input",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="JSON, JSON Lines or parquet; a row has text (or contents), and title, url and id as far as known",
    )
    build.add_argument(
        "--benchmark",
        choices=list(BENCHMARKS),
        help="the files are a benchmark's: take its paragraphs",
    )
    build.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder of the corpus"
    )
    build.add_argument(
        "--passage_characters",
        type=int,
        default=PASSAGE_CHARACTERS,
        help="longest passage that is searched; pages are read whole (default: %(default)s)",
    )
    build.add_argument(
        "--embedder", choices=EMBEDDERS, help="for dense and hybrid search (default: words alone)"
    )
    build.set_defaults(run=_build)
    search = commands.add_parser("search", help="print the pages that fit a query best")
    search.add_argument("query", help="what is looked for")
    serve = commands.add_parser(
        "serve", help="serve it over HTTP: /retrieve, /access, and MCP at /mcp"
    )
    serve.add_argument(
        "--host", default="127.0.0.1", help="address to listen at (default: %(default)s)"
    )
    serve.add_argument(
        "--port", type=int, default=8000, help="0 is any free one (default: %(default)s)"
    )
    for command, run in ((search, _search), (serve, _serve)):
        command.add_argument("folder", type=Path, metavar="DIR", help="folder of the corpus")
        command.add_argument(
            "--mode", choices=MODES, help="how it is searched (default: hybrid if it has vectors)"
        )
        command.add_argument(
            "--results", type=int, default=5, help="pages of a search (default: %(default)s)"
        )
        command.set_defaults(run=run)
    for command in (build, search, serve):
        add_flags(command, EmbedderConfig, leave_out=["embedder"])
    return parser


def _build(args: argparse.Namespace) -> int:
    check_writable("out", args.out, folder=True)
    embedder = (
        None if args.embedder is None else EmbedderConfig(**given_flags(args, EmbedderConfig))
    )
    read = read_pages if args.benchmark is None else partial(benchmark_pages, args.benchmark)
    pages = tqdm(chain.from_iterable(map(read, args.input)), "adding", unit="page", disable=None)
    done = build_corpus(pages, args.out, embedder, args.passage_characters)
    print(
        f"{args.out}: {done['added']} pages added; {done['pages']} pages in {done['passages']} passages."
    )
    if done["recall"] is not None:
        print(f"vector index: recall@10 {done['recall']:.3f} against exact search")
    return 0


def _corpus(args: argparse.Namespace) -> Corpus:
    check_least(args, results=1)
    corpus = Corpus(args.folder, given_flags(args, EmbedderConfig))
    check_choice("mode", args.mode or corpus.modes[-1], corpus.modes)
    if not corpus.complete:
        print(
            f"{args.folder}: not all pages can be found yet: build it again to its end.",
            file=sys.stderr,
        )
    return corpus


def _search(args: argparse.Namespace) -> int:
    async def search() -> None:
        corpus = _corpus(args)
        (found,) = await corpus.search([args.query], args.results, args.mode)
        if not found:
            print("no page was found", file=sys.stderr)
        for hit in found:
            print(
                f"{hit.score:.4f}  {printable(hit.page.id)}: {printable(' '.join(hit.passage.split())[:160])}"
            )
        await corpus.close()

    asyncio.run(search())
    return 0


def _serve(args: argparse.Namespace) -> int:
    from atommem.envs.web.corpus.serving import make_server
    from atommem.servers.vllm_process import free_port

    port = free_port(args.host, args.port)
    corpus = _corpus(args)
    print(
        f"{args.folder}: {corpus.counts['pages']} pages at http://{args.host}:{port}",
        file=sys.stderr,
    )
    make_server(corpus, args.mode, args.results).run("streamable-http", host=args.host, port=port)
    return 0
