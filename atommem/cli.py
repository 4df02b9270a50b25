"""The `atommem` command. Its sub-commands are entry points of the group ``atommem.commands``.

The core knows none of them by import: the rooms above it (and third parties) bring theirs.
"""

from __future__ import annotations

import io
import sys
from importlib.metadata import entry_points

from atommem.errors import AtomMemError

_SUMMARIES = {
    "demo": "train a tiny policy with GRPO from nothing, on CPU, and show what it learned",
    "data": "build and look at task files (HotpotQA, 2WikiMultiHopQA, MuSiQue, synthetic)",
    "train": "cold start (SFT) and GRPO on a task file",
    "eval": "evaluate a checkpoint or a server on a task file, or run a suite",
    "compare": "two evaluations on the same tasks: which is better, and which episodes flipped",
    "report": "evaluations as tables, plots and a page for the browser",
    "trace": "replay an episode step by step in the terminal",
}


def _usage(names: list[str]) -> str:
    lines = [f"  {name:<8} {_SUMMARIES.get(name, '')}".rstrip() for name in names]
    return "usage: atommem COMMAND ...\n\ncommands:\n" + "\n".join(lines) + "\n\n`atommem COMMAND --help` tells more."


def main(argv: list[str] | None = None) -> int:
    """Run a sub-command; returns the exit status (2: a wrong call or an `AtomMemError`)."""
    argv = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # no text of a model ends a command that shows it
    commands = {entry.name: entry for entry in entry_points(group="atommem.commands")}
    names = sorted(commands, key=lambda name: (list(_SUMMARIES).index(name) if name in _SUMMARIES else 99, name))
    if not argv or argv[0] in ("-h", "--help"):
        print(_usage(names))
        return 0 if argv else 2
    if argv[0] not in commands:
        print(f"atommem: unknown command {argv[0]!r}\n\n{_usage(names)}", file=sys.stderr)
        return 2
    try:
        command = commands[argv[0]].load()
        return int(command(argv[1:]) or 0)
    except ModuleNotFoundError as error:
        # A missing package of ours is a bug and keeps its traceback; a missing extra is a matter of installing.
        if error.name is None or error.name.split(".")[0] in ("atommem", "envs", "train", "eval", "demo"):
            raise
        print(f"atommem {argv[0]} needs the package {error.name}: pip install 'atommem[train]'.", file=sys.stderr)
        return 2
    except AtomMemError as error:
        print(f"atommem {argv[0]}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\natommem {argv[0]}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
