"""The files that are shipped: training recipes, suites, accelerate's launchers, prompt templates.

A command takes them by name from any folder: ``--config qwen3_8b_hotpotqa``, ``--suite table1``. What takes files
itself gets their path from ``atommem configs NAME``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from atommem.command_line import CommandParser, close_match
from atommem.errors import ConfigError

_FOLDER = Path(__file__).with_name("configs")


def shipped_files() -> dict[str, Path]:
    """Every shipped file by its name: ``train/qwen3_8b_hotpotqa``, ``accelerate/fsdp2``, ..."""
    return {
        path.relative_to(_FOLDER).with_suffix("").as_posix(): path
        for path in sorted(_FOLDER.rglob("*.yaml"))
    }


def find_file(name: str, given: str | Path, folder: str | None = None, field: str = "") -> Path:
    """The user's file at the path `given`, or else the shipped file of that name.

    Args:
        name: The setting, for the error.
        given: A path, or a name with or without its folder and ``.yaml``.
        folder: Where a name without folder is looked for (``train``, ``eval``, ...); None: in all.
        field: Which files of it are meant: those that begin a line with it.

    Raises:
        ConfigError: There is neither; the message names one that is close, else all.
    """
    path = Path(given)
    if path.is_file():
        return path
    files = shipped_files()
    wanted = path.as_posix().removeprefix("configs/").removesuffix(".yaml")
    if wanted in files:
        return files[wanted]
    short = {
        key.rpartition("/")[2]: file
        for key, file in files.items()
        if folder in (None, key.partition("/")[0])
    }
    if wanted in short:
        return short[wanted]
    short = {
        key: file for key, file in short.items() if f"\n{field}" in file.read_text(encoding="utf-8")
    }
    close = close_match(wanted.rpartition("/")[2], short)
    listed = (
        "`atommem configs` lists what is shipped" if close else f"shipped are {', '.join(short)}"
    )
    raise ConfigError(
        f"{name} is {str(given)!r}: there is no such file{close}; {listed}, or give another's path."
    )


def with_config_path(argv: Sequence[str], folder: str) -> list[str]:
    """A command line whose ``--config NAME`` is the path of the file that it names, as `TrlParser` reads it.

    Args:
        argv: The command line; ``--config=NAME`` is understood as well.
        folder: As for `find_file`.

    Raises:
        ConfigError: There is no such file, or none is named.
    """
    found: list[str] = []
    words = iter(argv)
    for word in words:
        flag, separator, name = word.partition("=")
        if flag != "--config":
            found.append(word)
            continue
        name = name if separator else next(words, "")
        if not name or name.startswith("--"):
            raise ConfigError(
                "--config is given without its file: give a path, or a name (atommem configs lists them)."
            )
        found += ["--config", str(find_file("config", name, folder))]
    return found


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``atommem configs``.

    Raises:
        ConfigError: There is no file of that name.
    """
    parser = CommandParser(
        prog="atommem configs",
        description="List the shipped configs, or print the path of one: accelerate launch --config_file "
        "$(atommem configs accelerate/fsdp2) -m atommem.cli train grpo --config qwen3_8b_hotpotqa",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="Print the path of this one.")
    name = parser.parse_args(argv).name
    if name is not None:
        print(find_file("name", name))
        return 0
    files = shipped_files()
    width = max(len(name) for name in files)
    for name, path in files.items():
        print(
            f"{name:<{width}}  {textwrap.shorten(_first_sentence(path), 118 - width, placeholder=' ...')}"
        )
    return 0


def _first_sentence(path: Path) -> str:
    """What the file says of itself: the comment at its top, up to its first full stop."""
    comment = takewhile(
        lambda line: line.startswith("# "), path.read_text(encoding="utf-8").splitlines()
    )
    return " ".join(line[2:].strip() for line in comment).partition(". ")[0]
