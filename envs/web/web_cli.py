"""The command `atommem web`: show a recording, or freeze it into a corpus."""

from __future__ import annotations

import argparse
from pathlib import Path

from atommem.command_line import CommandParser, add_flags, check_writable, given_flags
from atommem.config import EMBEDDERS, EmbedderConfig
from atommem.envs.web.net.recording import Recording
from atommem.text_safety import printable


def main(argv: list[str] | None = None) -> int:
    """Run ``atommem web ...``; returns the exit status.

    Raises:
        AtomMemError: A setting is wrong, or a file is missing or damaged.
    """
    args = _parser().parse_args(argv)
    return int(args.run(args))


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="atommem web", description=__doc__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    frozen = commands.add_parser(
        "freeze", help="make a corpus of the pages that were read (tools: [corpus])"
    )
    frozen.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder of the corpus"
    )
    frozen.add_argument(
        "--embedder", choices=EMBEDDERS, help="for dense and hybrid search (default: words alone)"
    )
    add_flags(frozen, EmbedderConfig, leave_out=["embedder", "embedder_url", "embedder_dim"])
    show = commands.add_parser("show", help="print what was recorded, and what it has cost")
    for command, run in ((frozen, _freeze), (show, _show)):
        command.add_argument("recording", type=Path, metavar="RECORDING")
        command.set_defaults(run=run)
    return parser


def _freeze(args: argparse.Namespace) -> int:
    from atommem.envs.web.net.freeze import freeze

    check_writable("out", args.out, folder=True)
    embedder = (
        None if args.embedder is None else EmbedderConfig(**given_flags(args, EmbedderConfig))
    )
    recording = Recording(args.recording, read_only=True)
    done = freeze(recording, args.out, embedder)
    recording.close()
    print(
        f"{args.out}: {done['pages']} pages. {done['unread']} pages that searches found were never read."
    )
    return 0


def _show(args: argparse.Namespace) -> int:
    recording = Recording(args.recording, read_only=True)
    for tool, backend, count in recording.counts():
        print(f"{count:7,} {printable(tool)} of {printable(backend)}")
    for tool, (calls, cost) in recording.spent().items():
        print(f"{calls:7,} calls of {printable(tool)} made, cost {cost:g}")
    recording.close()
    return 0
