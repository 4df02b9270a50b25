"""The engine's process from our side, and outcomes that were played before."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from atommem.errors import ConfigError, OutageError

_WORKER = Path(__file__).with_name("engine_worker.py")
INSTALL = (
    "ALFWorld's engine is needed (MIT; its data is not): python -m venv DIR; DIR/bin/pip install "
    "alfworld "
    "'textworld[pddl]'; then --alfworld_python DIR/bin/python, or ALFWORLD_PYTHON."
)


def engine_python(given: str | None) -> str:
    """The interpreter that has the engine: what is given, ALFWORLD_PYTHON, or this one.

    Raises:
        ConfigError: There is none.
    """
    found = given or os.environ.get("ALFWORLD_PYTHON")
    if found is None and importlib.util.find_spec("alfworld") is not None:
        found = sys.executable
    if found is None:
        raise ConfigError(f"no environment with alfworld is named. {INSTALL}")
    if not Path(found).is_file():
        raise ConfigError(f"alfworld_python is {found!r}: there is no such file. {INSTALL}")
    return found


class Engine:
    """One process of `engine_worker.py`, which begins when it is first asked. A context manager.

    Args:
        python: The interpreter that has the engine.
        log: What the engine prints goes there.
    """

    def __init__(self, python: str, log: Path) -> None:
        self._python, self._log = python, log

    @cached_property
    def _process(self) -> subprocess.Popen[str]:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("w", encoding="utf-8") as log:
            pipe = subprocess.PIPE
            return subprocess.Popen(
                [self._python, str(_WORKER)], stdin=pipe, stdout=pipe, stderr=log, text=True
            )

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        if "_process" in vars(self):
            with suppress(BrokenPipeError):
                self._process.stdin.close()  # type: ignore[union-attr]
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def load(self, problem: str, plan: bool = False) -> Mapping[str, Any]:
        """Start a game: ``text``, ``won``, and the planner's commands as ``plan`` if asked for."""
        return self._ask({"problem": problem, **({"plan": True} if plan else {})})

    def step(self, command: str) -> Mapping[str, Any]:
        """``text`` and ``won``; a command that is not possible does nothing."""
        return self._ask({"command": command})

    def _ask(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        line = ""
        with suppress(BrokenPipeError):
            print(json.dumps(asked), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise OutageError(f"ALFWorld's engine has ended: {self._log} says why. {INSTALL}")
        found: Mapping[str, Any] = json.loads(line)
        if "error" in found:
            raise OutageError(f"ALFWorld's engine failed: {found['error']} (see {self._log}).")
        return found
