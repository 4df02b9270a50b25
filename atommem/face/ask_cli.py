"""``atommem ask``: read a file and answer questions about it."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from atommem.blocking import ended_by_ctrl_c
from atommem.command_line import CommandParser, check_writable
from atommem.environment import DEFAULT_ENVIRONMENT
from atommem.errors import ConfigError
from atommem.face import saved
from atommem.face.answers import Answer
from atommem.face.async_memory import AsyncMemory, Progress
from atommem.face.flags import add_settings, given_settings
from atommem.face.texts import decoded, read_file
from atommem.policy.opening import API_HELP

EXIT_UNANSWERED = 3
EXIT_INTERRUPTED = 130
_OWN = ("file", "questions", "policy", "memory", "no_reading", "json", "quiet")


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``atommem ask``.

    Returns:
        0; 3 when the policy left a question without an answer; 130 after Ctrl-C.

    Raises:
        AtomMemError: A setting or file is wrong, or the policy cannot be asked.
    """
    arguments = _arguments(sys.argv[1:] if argv is None else argv)
    try:
        text = None  # before there is an event loop, in which Ctrl-C would wait for the end of the input
        if arguments.file is not None:
            is_input = arguments.file == "-"
            text = (
                decoded(sys.stdin.buffer.read(), "standard input")
                if is_input
                else read_file(Path(arguments.file))
            )
        with _held(arguments.memory):
            return asyncio.run(_run(arguments, text))
    except KeyboardInterrupt:
        kept = f" What was read is in {arguments.memory}; the same command goes on from there."
        print(
            f"\natommem ask: interrupted.{kept if arguments.memory is not None else ''}",
            file=sys.stderr,
        )
        return EXIT_INTERRUPTED


@contextmanager
def _held(folder: Path | None) -> Iterator[None]:
    """A memory is one command's at a time: of two, the last to save would take away what the other has read.

    Raises:
        ConfigError: Another has it.
    """
    if folder is None:
        yield
        return
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # file systems that know no locks
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(
                    f"another command is using the memory {folder}: wait for it, or give another folder."
                ) from error
        yield
    finally:
        os.close(lock)
        if made:
            with suppress(OSError):  # something was saved in it
                folder.rmdir()


def _arguments(argv: list[str]) -> argparse.Namespace:
    ahead = CommandParser(add_help=False)
    ahead.add_argument("--environment", default=DEFAULT_ENVIRONMENT)
    parser = CommandParser(
        prog="atommem ask",
        usage="atommem ask FILE QUESTION ... --policy POLICY [--memory DIR] [--json] [settings]",
        description="Read FILE into a memory, chunk by chunk, and answer questions from it. The policy sees the "
        "questions while it reads. Answers go to standard output, everything else to standard error.",
    )
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help="A text file (UTF-8); - is standard input."
    )
    parser.add_argument(
        "questions", metavar="QUESTION", nargs="*", help="Each is answered in turn."
    )
    parser.add_argument(
        "--policy",
        nargs="+",
        help="A model folder (or hub name): one that was trained here brings its settings. Or the URLs of vLLM servers "
        "of one model, or of a chat server (--api chat). Unset with --memory: that of the memory.",
    )
    parser.add_argument("--api", default=argparse.SUPPRESS, help=API_HELP)
    parser.add_argument(
        "--model", default=argparse.SUPPRESS, help="Name of the model on the server."
    )
    parser.add_argument(
        "--tokenizer", default=argparse.SUPPRESS, help="Tokenizer folder or hub name (server)."
    )
    parser.add_argument(
        "--memory",
        type=Path,
        metavar="DIR",
        help="Keep the memory there, and go on with it if there is one. A file that it has read is not read again; one "
        "that it was reading when it was interrupted is read on.",
    )
    parser.add_argument(
        "--no_reading",
        action="store_true",
        help="All arguments are questions to --memory: nothing is read.",
    )
    parser.add_argument(
        "--json", action="store_true", help="Print one JSON object: answers, and what was shown."
    )
    parser.add_argument(
        "--quiet", action="store_true", help="Neither progress nor sources on standard error."
    )
    add_settings(parser, ahead.parse_known_args(argv)[0].environment)
    arguments = parser.parse_intermixed_args(argv)
    _check(arguments)
    return arguments


def _check(arguments: argparse.Namespace) -> None:
    """Whether there is something to ask, and something to ask it of; cheap, before a model is loaded."""
    exists = arguments.memory is not None and saved.holds_memory(arguments.memory)
    if arguments.no_reading:
        if not exists:
            raise ConfigError(
                "no_reading is for a memory that exists: give its folder as --memory."
            )
        arguments.questions = [
            *([arguments.file] if arguments.file is not None else []),
            *arguments.questions,
        ]
        arguments.file = None
    elif arguments.file is None:
        raise ConfigError("no FILE is given: atommem ask FILE QUESTION --policy POLICY.")
    elif arguments.file != "-" and not Path(arguments.file).exists():
        raise ConfigError(
            f"there is no file {arguments.file!r}: atommem ask FILE QUESTION --policy POLICY."
        )
    if not arguments.questions or not all(question.strip() for question in arguments.questions):
        raise ConfigError("no question is given: atommem ask FILE QUESTION --policy POLICY.")
    check_writable("memory", arguments.memory, folder=True)
    if arguments.policy is None and not exists:
        raise ConfigError(
            "no policy is given: --policy FOLDER, or --policy URL with --tokenizer or --api chat."
        )


async def _run(arguments: argparse.Namespace, text: str | None) -> int:
    settings = given_settings(arguments, _OWN)
    policy = arguments.policy
    if arguments.memory is not None and saved.holds_memory(arguments.memory):
        with ended_by_ctrl_c():
            stored = saved.read(arguments.memory)
            engine = saved.open_engine(stored, policy, settings, reembed=False)
        memory = await AsyncMemory.taken_up(stored, engine)
    else:
        with ended_by_ctrl_c():
            memory = AsyncMemory(policy, **settings)
    answers: list[Answer] = []
    async with memory:
        try:
            if text is not None:
                name = "" if arguments.file == "-" else Path(arguments.file).name
                with _bar(arguments.quiet) as progress:
                    await memory.read(
                        text,
                        questions=arguments.questions,
                        name=name,
                        progress=progress,
                        again=False,
                    )
            for question in arguments.questions:
                answers.append(await memory.ask(question))
                if not arguments.json:
                    _print(answers[-1], arguments)
        finally:
            # Also after Ctrl-C or an outage: the same command then goes on from there.
            if arguments.memory is not None:
                await memory.save(arguments.memory)
        if arguments.json:
            print(json.dumps(_report(arguments, memory, answers), ensure_ascii=False, indent=2))
    return 0 if all(answer.text is not None for answer in answers) else EXIT_UNANSWERED


@contextmanager
def _bar(quiet: bool) -> Iterator[Progress]:
    """A progress bar on standard error; none where that is no terminal."""
    with tqdm(
        desc="reading", unit="chunk", disable=True if quiet else None, dynamic_ncols=True
    ) as bar:

        def progress(done: int, chunks: int) -> None:
            bar.total = chunks
            bar.update(done - bar.n)

        yield progress


def _print(answer: Answer, arguments: argparse.Namespace) -> None:
    several = len(arguments.questions) > 1
    print(f"{answer.question}\t{answer}" if several else answer, flush=True)
    if arguments.quiet:
        return
    if answer.text is None:
        print("(the policy gave no answer)", file=sys.stderr)
    for entry in answer.entries:
        source = (
            "" if entry.source is None or entry.source.piece is None else f" ({entry.source.piece})"
        )
        print(f"  shown: {' '.join(entry.text.split())}{source}", file=sys.stderr)


def _report(
    arguments: argparse.Namespace, memory: AsyncMemory, answers: list[Answer]
) -> dict[str, Any]:
    return {
        "file": arguments.file,
        "answers": [answer.to_json() for answer in answers],
        "entries": len(memory.entries()),
        "steps": memory.steps,
        "readings": [asdict(reading) for reading in memory.readings],
    }
