"""The engine's process from our side, and outcomes that were played before."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from atommem.errors import ConfigError, OutageError

_WORKER = Path(__file__).with_name("engine_worker.py")
INSTALL = (
    "ALFWorld's engine is needed (MIT; its data is not): python -m venv DIR; DIR/bin/pip install alfworld "
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
    """One process of `engine_worker.py`. A context manager.

    Args:
        python: The interpreter that has the engine.
        log: What the engine prints goes there.
    """

    def __init__(self, python: str, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log.open("w", encoding="utf-8")
        self._log_path = log
        self._process = subprocess.Popen(
            [python, str(_WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()

    def load(self, problem: str, plan: bool = False) -> Mapping[str, Any]:
        """Start a game: ``text``, ``won``, and the planner's commands as ``plan`` if asked for."""
        return self._ask({"problem": problem, **({"plan": True} if plan else {})})

    def step(self, command: str) -> Mapping[str, Any]:
        """``text`` and ``won``; a command that is not possible does nothing."""
        return self._ask({"command": command})

    def _ask(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise OutageError(f"ALFWorld's engine has ended: {self._log_path} says why. {INSTALL}")
        found: Mapping[str, Any] = json.loads(line)
        if "error" in found:
            raise OutageError(f"ALFWorld's engine failed: {found['error']} (see {self._log_path}).")
        return found
