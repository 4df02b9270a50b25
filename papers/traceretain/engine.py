"""ALFWorld's engine in a process of its own, and the agent that plays on it.

The agent is a program that knows how each family of games is done, and searches. Without a memory
it searches receptacles in a fixed order; with one it starts where the most similar success found
its things. Success and steps are the engine's.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from atommem.errors import ConfigError, OutageError
from papers.traceretain.games import LAMP, Game

INSTALL = (
    "ALFWorld's engine is needed (MIT; its data is not): python -m venv DIR; DIR/bin/pip install "
    "alfworld 'textworld[pddl]'; then --alfworld_python DIR/bin/python, or ALFWORLD_PYTHON."
)
APPLIANCES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
Hint = tuple[tuple[str, str], ...]
"""Where a success found ``object`` or ``lamp``, by kind of receptacle."""
_THING = re.compile(r"\ba ([a-z]+ \d+)")


def find_engine(flag: str | None) -> str:
    """Return the interpreter that has the engine: the flag's, ALFWORLD_PYTHON, or this one.

    Raises:
        ConfigError: There is none.
    """
    found = flag or os.environ.get("ALFWORLD_PYTHON")
    if found is None and importlib.util.find_spec("alfworld") is not None:
        found = sys.executable
    if found is None or not Path(found).is_file():
        raise ConfigError(f"alfworld_python={found}: no such interpreter. {INSTALL}")
    return found


class Games(Protocol):
    """An engine that plays one game at a time."""

    def load(self, problem: str, plan: bool = False) -> Mapping[str, Any]:
        """Start a game; returns ``text``, ``won``, and the planner's commands as ``plan``."""
        ...

    def step(self, command: str) -> Mapping[str, Any]:
        """Return ``text`` and ``won``; an impossible command does nothing."""
        ...


class Engine:
    """One process of `engine_worker.py`, started by the first request. A context manager.

    Args:
        python: The interpreter that has the engine.
        log: File for everything that the engine prints.
    """

    def __init__(self, python: str, log: Path) -> None:
        self._python, self._log = python, log

    @cached_property
    def _process(self) -> subprocess.Popen[str]:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        command = [self._python, str(Path(__file__).with_name("engine_worker.py"))]
        pipe = subprocess.PIPE
        with self._log.open("w", encoding="utf-8") as log:
            return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        if "_process" in vars(self):
            self._process.kill()

    def load(self, problem: str, plan: bool = False) -> Mapping[str, Any]:
        """Start a game."""
        return self._ask({"problem": problem, "plan": plan})

    def step(self, command: str) -> Mapping[str, Any]:
        """Send one command."""
        return self._ask({"command": command})

    def _ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        line = ""
        with suppress(BrokenPipeError):
            print(json.dumps(request), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise OutageError(f"ALFWorld's engine has ended: see {self._log}. {INSTALL}")
        found: Mapping[str, Any] = json.loads(line)
        if "error" in found:
            raise OutageError(f"ALFWorld's engine failed: {found['error']} (see {self._log}).")
        return found


@dataclass(frozen=True)
class Played:
    """One episode: won within the limit, steps, and where it found things."""

    won: bool
    steps: int
    found: Hint


class _Ended(Exception):  # noqa: N818
    """The limit is reached, or the game is won."""


class _Episode:
    def __init__(self, engine: Games, game: Game, hint: Hint, limit: int) -> None:
        self.engine, self.game, self.hint, self.limit = engine, game, hint, limit
        self.steps, self.won = 0, False
        self.seen: dict[str, list[str]] = {}  # receptacle -> its visible contents
        self.at = ""
        self.found: list[tuple[str, str]] = []

    def do(self, command: str) -> str:
        if self.steps >= self.limit or self.won:
            raise _Ended
        answer = self.engine.step(command)
        self.steps += 1
        self.won = bool(answer["won"])
        if self.won:
            raise _Ended
        return str(answer["text"])

    def look_into(self, place: str) -> None:
        """Go there, and open what is closed."""
        if self.at == place and place in self.seen:
            return
        text = self.do(f"go to {place}")
        self.at = place
        if f"{place} is closed" in text:
            text = self.do(f"open {place}")
        self.seen[place] = _THING.findall(text.partition("you see")[2])

    def find(self, role: str, kind: str, taken: set[str]) -> tuple[str, str]:
        """Return name and place of a thing; ends the episode if there is none."""
        likely = {place for what, place in self.hint if what == role}

        def rank(place: str) -> tuple[bool, bool]:
            return place not in self.seen, place.split()[0] not in likely

        for place in sorted(self.game.receptacles, key=rank):
            if place not in self.seen:
                self.look_into(place)
            for thing in self.seen[place]:
                if thing.split()[0] == kind and thing not in taken:
                    self.look_into(place)
                    self.found.append((role, place.split()[0]))
                    return thing, place
        raise _Ended

    def place_of(self, kind: str) -> str:
        return next(place for place in self.game.receptacles if place.split()[0] == kind)

    def play(self) -> None:
        game, taken = self.game, set[str]()
        for _ in range(2 if game.family == "two" else 1):
            thing, place = self.find("object", game.object, taken)
            taken.add(thing)
            self.do(f"take {thing} from {place}")
            if game.family == "look":
                lamp, _ = self.find("lamp", LAMP, set())
                self.do(f"use {lamp}")
                return
            if game.family in APPLIANCES:
                appliance = self.place_of(APPLIANCES[game.family])
                self.look_into(appliance)
                self.do(f"{game.family} {thing} with {appliance}")
            target = self.place_of(game.receptacle)
            self.look_into(target)
            self.do(f"move {thing} to {target}")


def play(engine: Games, game: Game, hint: Hint, limit: int) -> Played:
    """Play one episode of at most `limit` steps."""
    engine.load(game.problem)
    episode = _Episode(engine, game, hint, limit)
    with suppress(_Ended):
        episode.play()
    return Played(episode.won, episode.steps, tuple(dict.fromkeys(episode.found)))
