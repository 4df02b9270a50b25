"""``atommem reproduce``: a published experiment by its own protocol, its numbers beside ours, and controls."""

from __future__ import annotations

import json
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from atommem.arguments import Command, Parser, run_command
from atommem.envs.task_files import write_json, write_text
from atommem.errors import ConfigError, check_writable
from atommem.eval.journal import resumable, settings_of

EXIT_DOES_NOT_HOLD = 1
EXPERIMENTS = {
    "amac": "admission by five factors (A-MAC, arXiv 2603.04549)",
    "memobank": "pruning of a case bank (MemoBankRL)",
    "regagent": "addition and deletion of experience (arXiv 2505.16067)",
    "streams": "the same rules on a stream and an agent of yours",
    "traceretain": "retention of trajectories (arXiv 2606.29178)",
}
"""What there is, with what `--help` says of it; each is a package here with a module `experiment`."""


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``atommem reproduce``.

    Returns:
        0; with ``--check`` 1 where a statement does not hold; 130 after Ctrl-C.

    Raises:
        AtomMemError: A file is missing or damaged, or a setting is wrong.
    """
    commands = {name: Command(partial(_run, name), text) for name, text in EXPERIMENTS.items()}
    return run_command("atommem reproduce", commands, sys.argv[1:] if argv is None else argv)


def _run(name: str, argv: list[str]) -> int:
    arguments = _parser(name).parse_args(argv)
    for place in ("out", "cache"):
        check_writable(place, getattr(arguments, place), folder=True)
    seeds = getattr(arguments, "seeds", None) or 0
    if (min(seeds) if isinstance(seeds, list) else seeds) < 0:
        raise ConfigError(f"seeds are {arguments.seeds}: give 0 or more.")
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 160
    say = Console(highlight=False, soft_wrap=True, stderr=True)
    experiment = _module(name)

    def tell(text: str) -> None:
        say.print(text, markup=False)

    with resumable(arguments.cache, name, settings_of(arguments), tell) as journal:
        sheet = experiment.run(arguments, tell, journal)
    if arguments.out is not None:
        write_json(arguments.out / f"{sheet.name}.json", sheet.to_json())
        write_text(arguments.out / f"{sheet.name}.md", sheet.markdown())
    if arguments.json:
        print(json.dumps(sheet.to_json()))
    else:
        sheet.print(console)
        print(json.dumps(sheet.verdict()))
    return EXIT_DOES_NOT_HOLD if arguments.check and not sheet.holds else 0


def _module(name: str) -> Any:
    return import_module(f"atommem.eval.reproduce.{name}.experiment")


def _parser(name: str) -> Parser:
    parser = Parser(f"atommem reproduce {name}", f"{EXPERIMENTS[name]}. See docs/reproduce.md.")
    parser.add_argument(
        "--check", action="store_true", help="Exit with 1 unless every statement holds."
    )
    parser.add_argument("--json", action="store_true", help="Print one JSON object on one line.")
    parser.add_argument("--out", type=Path, metavar="DIR", help="Also write NAME.json, NAME.md.")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path("runs/reproduce"),
        metavar="DIR",
        help="Keeps vectors, and results for a run that continues after an interruption.",
    )
    _module(name).add_flags(parser)
    return parser
