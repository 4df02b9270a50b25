"""``--quick`` of the benches: their shortest form, which shows that they run and measures nothing."""

from __future__ import annotations

import argparse
from typing import Any


def add_quick(parser: argparse.ArgumentParser, **shortest: Any) -> None:
    """Give `parser` the flag ``--quick``: it sets ``quick`` to True, and other options to what is named here.

    Options that stand behind it on the command line win.
    """

    class Quick(argparse.Action):
        def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
            vars(namespace).update(shortest, quick=True)

    said = " ".join(f"--{name} {value}" for name, value in shortest.items() if not isinstance(value, list))
    described = f"the shortest form, which measures nothing{': ' + said if said else ''}"
    parser.add_argument("--quick", action=Quick, nargs=0, default=False, help=described)
