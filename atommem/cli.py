"""The `atommem` command. Its sub-commands are entry points of the group ``atommem.commands``.

The core knows none of them by import: the rooms above it (and third parties) bring theirs.
"""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, version
from types import FrameType
from typing import Any

from atommem.command_line import close_match, extra_of, one_line
from atommem.errors import AtomMemError, ConfigError
from atommem.plugins import registered

_SUMMARIES = {
    "ask": "read a file with a policy and answer questions about it",
    "serve": "serve a policy as a memory behind the API that clients of OpenAI speak",
    "demo": "train a tiny policy with GRPO from nothing, on CPU, and show what it learned",
    "data": "build and look at task files (HotpotQA, 2WikiMultiHopQA, MuSiQue, synthetic)",
    "corpus": "make a corpus of pages, search it, and serve it to tools",
    "web": "look at recorded calls of tools, and freeze them into a corpus",
    "train": "cold start (SFT) and GRPO on a task file",
    "eval": "evaluate a checkpoint or a server on a task file, or run a suite",
    "judge": "hold a judge of answers against labels, and against itself",
    "compare": "two evaluations on the same tasks: which is better, and which episodes flipped",
    "retention": "list the rules that admit and evict entries, or check one",
    "audit": "what is in a memory that has grown, and what each rule would drop",
    "report": "evaluations as tables, plots and a page for the browser",
    "trace": "replay an episode step by step in the terminal",
    "env": "list environments, or check that one keeps its promises",
    "configs": "list the shipped recipes, suites and launchers, or print the path of one",
}


def main(argv: list[str] | None = None) -> int:
    """Run a sub-command; returns the exit status (2: a wrong call or an `AtomMemError`)."""
    with _ended_as_interrupted():
        return _main(sys.argv[1:] if argv is None else argv)


def _main(argv: list[str]) -> int:
    for closed in [name for name in ("stdout", "stderr") if getattr(sys, name) is None]:  # (>&-)
        setattr(sys, closed, open(os.devnull, "w"))  # noqa: SIM115  # to the end of the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # no text of a model ends a command that shows it
    name = f" {argv[0][:80]}" if argv and not argv[0].startswith("-") else ""
    try:
        status = _run(argv)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        return 0
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # rich's answer to it, in the tables
            return 0
        raise
    except ModuleNotFoundError as error:
        # A missing module of ours is a bug and keeps its traceback; a missing extra is a matter of installing.
        if error.name is None or error.name.split(".")[0] == "atommem":
            raise
        extra = extra_of(error.name, name.strip())
        print(
            f"atommem{name} needs the package {error.name}: pip install 'atommem[{extra}]'.",
            file=sys.stderr,
        )
        return 2
    except (AtomMemError, OSError) as error:
        print(f"atommem{name}: {one_line(error)}", file=sys.stderr)
        return 2
    except RecursionError:
        print(
            f"atommem{name}: a file is nested too deeply to be read: give another.", file=sys.stderr
        )
        return 2
    except KeyboardInterrupt:
        print(f"\natommem{name}: interrupted", file=sys.stderr)
        return 130


def _run(argv: list[str]) -> int:
    commands = _commands()
    if not argv or argv[0] in ("-h", "--help"):
        print(_usage(commands))
        return 0 if argv else 2
    if argv[0] in ("-V", "--version"):
        print(f"atommem {version('atommem')}")
        return 0
    if argv[0] not in commands:
        meant = close_match(argv[0], commands)
        print(
            f"atommem: unknown command {argv[0][:80]!r}{meant} (see atommem --help).",
            file=sys.stderr,
        )
        return 2
    return int(_load(commands[argv[0]])(argv[1:]) or 0)


@contextmanager
def _ended_as_interrupted() -> Iterator[None]:
    """SIGTERM, as schedulers and containers send it, does meanwhile what Ctrl-C does; commands may do otherwise."""
    process = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a fork of this process
            os._exit(128 + number)
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # a job in the background of a shell ignores Ctrl-C
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)  # asyncio's cancels what it runs

    before = signal.getsignal(signal.SIGTERM)
    ours = threading.current_thread() is threading.main_thread() and before is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, before)


def _reader_is_gone() -> bool:
    """Whether nobody reads what is printed any more (data show | head), which is no error."""
    printed = select.poll()
    printed.register(sys.stdout.fileno(), 0)
    if not printed.poll(0):
        return False
    # What Python would flush at exit has nowhere to go.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _commands() -> dict[str, EntryPoint]:
    """Every command by its name, ours first; nothing is imported, so that a broken one leaves the others alone."""
    found = registered("atommem.commands")
    commands = {
        entry.name: entry for entry in sorted(found, key=_is_ours)
    }  # another's cannot take our name
    order = [*_SUMMARIES, *sorted(commands)]
    return {name: commands[name] for name in sorted(commands, key=order.index)}


def _is_ours(entry: EntryPoint) -> bool:
    return entry.module.split(".")[0] == "atommem"


def _load(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:  # whatever another's module does when it is imported
        if _is_ours(entry):
            raise
        package = "an unknown package" if entry.dist is None else f"the package {entry.dist.name}"
        raise ConfigError(
            f"this command comes with {package} and cannot be loaded ({entry.value}: {type(error).__name__}: {error}). "
            "Upgrade or uninstall it."
        ) from error


def _usage(commands: dict[str, EntryPoint]) -> str:
    lines = [
        f"  {name:<9} {_SUMMARIES.get(name, _origin(entry))}".rstrip()
        for name, entry in commands.items()
    ]
    return (
        "usage: atommem COMMAND ...    or: atommem --version\n\ncommands:\n"
        + "\n".join(lines)
        + "\n\n`atommem COMMAND --help` tells more."
    )


def _origin(entry: EntryPoint) -> str:
    """Where another's command comes from."""
    return "" if entry.dist is None else f"({entry.dist.name} {entry.dist.version})"


if __name__ == "__main__":
    raise SystemExit(main())
