"""What the benches share: their command line, ``--quick`` in it, other processes, and the line that each ends with.

``--quick`` is a bench's shortest form, which shows that it runs and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

ATOMMEM = [sys.executable, "-m", "atommem.cli"]
"""The command, in this environment."""


def command_line(description: str | None) -> argparse.ArgumentParser:
    """A parser whose help has the words of a module as they stand there."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_quick(parser: argparse.ArgumentParser, **shortest: Any) -> None:
    """Give `parser` the flag ``--quick``: it sets ``quick`` to True, and other options to what is named here.

    Options that stand behind it on the command line win.
    """

    class Quick(argparse.Action):
        def __call__(
            self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None
        ) -> None:
            vars(namespace).update(shortest, quick=True)

    said = " ".join(
        f"--{name} {value}" for name, value in shortest.items() if not isinstance(value, list)
    )
    described = f"the shortest form, which measures nothing{': ' + said if said else ''}"
    parser.add_argument("--quick", action=Quick, nargs=0, default=False, help=described)


def flags(settings: Mapping[str, Any]) -> list[str]:
    """Settings as the words of a command line."""
    words = {
        name: value if isinstance(value, list) else [value] for name, value in settings.items()
    }
    return [word for name, values in words.items() for word in (f"--{name}", *map(str, values))]


def in_a_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a call gives, in a process of its own that has imported the bench and nothing more."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


async def seconds_of(work: Awaitable[Any]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


def last_line(result: Mapping[str, Any]) -> int:
    """Print what a bench has found, one JSON object on a line; its status: 0 if and only if "holds" is true."""
    print(json.dumps(result))
    return 0 if result["holds"] else 1
