"""The command `atommem web`: show a recording, or freeze it into a corpus."""

from __future__ import annotations

import sys
from pathlib import Path

from atommem.arguments import Command, Parser, make, run_command
from atommem.config import EMBEDDERS, EmbedderConfig
from atommem.envs.web.net.recording import Recording
from atommem.errors import check_writable
from atommem.text_safety import printable


def main(argv: list[str] | None = None) -> int:
    """Run ``atommem web``; returns the exit status.

    Raises:
        AtomMemError: A setting is wrong, or a file is missing or damaged.
    """
    commands = {
        "freeze": Command(_freeze, "make a corpus of the pages that were read (tools: [corpus])"),
        "show": Command(_show, "print the recorded calls and their cost"),
    }
    return run_command("atommem web", commands, sys.argv[1:] if argv is None else argv)


def _freeze(argv: list[str]) -> int:
    from atommem.envs.web.net.freeze import freeze

    parser = Parser("atommem web freeze", "Make a corpus of the pages that were read.")
    parser.add_argument("recording", type=Path, metavar="RECORDING")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="The corpus.")
    parser.add_argument(
        "--embedder", choices=EMBEDDERS, help="For dense and hybrid search (default: words alone)."
    )
    parser.add_settings("embedder", EmbedderConfig, names=["embedder_model"])
    args = parser.parse_args(argv)
    check_writable("out", args.out, folder=True)
    embedder = None if args.embedder is None else make(EmbedderConfig, args)
    recording = Recording(args.recording, read_only=True)
    done = freeze(recording, args.out, embedder)
    recording.close()
    print(
        f"{args.out}: {done['pages']} pages. {done['unread']} pages that searches found were never read."
    )
    return 0


def _show(argv: list[str]) -> int:
    parser = Parser("atommem web show", "Print the recorded calls and their cost.")
    parser.add_argument("recording", type=Path, metavar="RECORDING")
    args = parser.parse_args(argv)
    recording = Recording(args.recording, read_only=True)
    for tool, backend, count in recording.counts():
        print(f"{count:7,} {printable(tool)} of {printable(backend)}")
    for tool, (calls, cost) in recording.spent().items():
        print(f"{calls:7,} calls of {printable(tool)} made, cost {cost:g}")
    recording.close()
    return 0
