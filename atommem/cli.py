"""The `atommem` command. Its sub-commands are entry points of the group ``atommem.commands``.

The core imports none of them: the rooms above it, and other packages, bring theirs.
"""

import io
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import requires, version
from itertools import takewhile
from types import FrameType
from typing import Any

from atommem.arguments import Command, Parser, run_command
from atommem.errors import AtomMemError, format_error
from atommem.plugins import find_file, registered, shipped_files

_SUMMARIES = {
    "ask": "read a file with a policy and answer questions about it",
    "serve": "serve a policy as a memory behind OpenAI's API",
    "demo": "train a tiny policy with GRPO from scratch on CPU",
    "data": "build and show task files (HotpotQA, tables, ...)",
    "corpus": "build and serve a corpus of pages",
    "train": "cold start (SFT) and GRPO on a task file",
    "eval": "evaluate a policy on a task file, or run a suite",
    "compare": "compare two evaluations on the same tasks",
    "judge": "judge the same answers with several prompts",
    "audit": "analyze a memory: duplicates, unused entries, evictions",
    "report": "show evaluations as tables, plots and a page",
    "trace": "replay an episode step by step in the terminal",
    "env": "list environments, or check one",
    "configs": "list the shipped recipes, suites and launchers",
    "completion": "print what bash and zsh complete",
}

# What an extra names for packages that are not called like it.
_PROJECTS = {"bs4": "beautifulsoup4", "dateutil": "python-dateutil"}
_PROJECTS |= {"vl_convert": "vl-convert-python"}
_PROJECTS |= dict.fromkeys(["pydantic", "pydantic_core", "starlette"], "mcp")


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM, as schedulers and containers send it, do what Ctrl-C does."""
    process = os.getpid()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a fork of this process
            os._exit(128 + number)
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # a shell's background job ignores Ctrl-C
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)  # asyncio's handler cancels the running task

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _format_warning(message: Any, category: type, filename: str, lineno: int, *_: Any) -> str:
    """Show a warning for the user without the place in the code."""
    where = "warning" if category is UserWarning else f"{filename}:{lineno}: {category.__name__}"
    return f"{where}: {message}\n"


@_sigterm_interrupts()
def main(argv: list[str] | None = None) -> int:
    """Run a sub-command; the exit status is 2 for a wrong call or an `AtomMemError`."""
    argv = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # models write anything
    warnings.formatwarning = _format_warning  # type: ignore[assignment]
    name = f" {argv[0][:80]}" if argv and not argv[0].startswith("-") else ""
    try:
        status = _run(argv)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of a pipe is gone: data show | head
        # Python flushes at exit: redirect to nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as a shell reports SIGPIPE
    except ModuleNotFoundError as error:
        # A missing module of ours is a bug and keeps its traceback.
        package = (error.name or "atommem").split(".")[0]
        if package == "atommem":
            raise
        extra = _extra_of(package, name.strip())
        message = f"needs the package {package}: pip install -c constraints.txt -e '.[{extra}]'."
    except (AtomMemError, OSError) as error:
        message = format_error(error)
    except RecursionError:
        message = "a file is nested too deeply to be read. Give another."
    except KeyboardInterrupt:
        print(f"\natommem{name}: interrupted", file=sys.stderr)
        return 130
    print(f"atommem{name}: {message}", file=sys.stderr)
    return 2


def _run(argv: list[str]) -> int:
    if argv[:1] in (["-V"], ["--version"]):
        print(f"atommem {version('atommem')}")
        return 0
    # Nothing is imported to list commands. Another package cannot replace one of ours.
    found = sorted(registered("atommem.commands"), key=lambda one: one.value.startswith("atommem."))
    values = {entry.name: entry.value for entry in found}
    commands = {
        name: Command(values[name], _SUMMARIES.get(name, f"({values[name]})"))
        for name in sorted(values, key=[*_SUMMARIES, *values].index)
    }
    return run_command("atommem", commands, argv)


def _extra_of(package: str, command: str) -> str:
    """Return the extra that installs `package`; prefer the one named like `command`."""
    project = _PROJECTS.get(package, package.replace("_", "-"))
    wanted = re.compile(rf'{project}\b(?!-).*extra == "([\w-]+)"', re.IGNORECASE)
    extras = [found[1] for line in requires("atommem") or [] if (found := wanted.match(line))]
    extra = command if command in extras else next(iter(extras), "train")
    return "train" if extra == "local" and command not in ("ask", "serve") else extra


def list_configs(argv: list[str]) -> int:
    parser = Parser(
        "atommem configs",
        "List the shipped configs, or print the path of one, as for a launcher: "
        "`accelerate launch --config_file $(atommem configs fsdp2) -m atommem.cli train grpo ...`",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="Print the path of this one.")
    name = parser.parse_args(argv).name
    if name is not None:
        print(find_file("name", name))
        return 0
    files = shipped_files()
    width = max(map(len, files))
    for name, path in files.items():
        lines = path.read_text(encoding="utf-8").splitlines()
        comment = takewhile(lambda line: line.startswith("# "), lines)
        summary = " ".join(line[2:].strip() for line in comment).partition(". ")[0]
        print(f"{name:<{width}}  {summary}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
