"""ALFWorld's engine in a process of its own, the agent that plays on it, and a stream of games.

The agent is a program that knows how each family of games is done, and searches. Without a memory
it searches receptacles in a fixed order; with one it starts where the most similar success found
its things. Success and steps are the engine's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any

from atommem.errors import ConfigError, OutageError
from papers.experience import Bank, Experience
from papers.experiment import Journal, progress
from papers.streams import Shown
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
    """Return the interpreter that has the engine: the flag's, or ALFWORLD_PYTHON."""
    found = flag or os.environ.get("ALFWORLD_PYTHON")
    if found is None or not Path(found).is_file():
        raise ConfigError(f"alfworld_python={found}: no such interpreter. {INSTALL}")
    return found


class Engine:
    """One process of `engine_worker.py`, started by the first request. A context manager.

    `python` is the interpreter that has the engine, `log` a file for everything that it prints.
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
        """Start a game; returns ``text``, ``won``, and the planner's commands as ``plan``."""
        return self._ask({"problem": problem, "plan": plan})

    def step(self, command: str) -> Mapping[str, Any]:
        """Return ``text`` and ``won``; an impossible command does nothing."""
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
    """One episode: won within the limit, steps, where it found things, and a model's commands."""

    won: bool
    steps: int
    found: Hint = ()
    commands: tuple[str, ...] = ()


class _Ended(Exception):  # noqa: N818
    """The limit is reached, or the game is won."""


class _Episode:
    def __init__(self, engine: Engine, game: Game, hint: Hint, limit: int) -> None:
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


def play(engine: Engine, game: Game, hint: Hint, limit: int) -> Played:
    """Play one episode of at most `limit` steps."""
    engine.load(game.problem)
    episode = _Episode(engine, game, hint, limit)
    with suppress(_Ended):
        episode.play()
    return Played(episode.won, episode.steps, tuple(dict.fromkeys(episode.found)))


AGENT_VERSION = "1"
"""Stored outcomes of another version are not used."""


class Player:
    """Plays each game with each hint once in `limit` steps; agent and engine are deterministic."""

    def __init__(self, engine: Engine, journal: Journal, limit: int) -> None:
        self._engine, self._journal = engine, journal
        self.limit = limit
        self.played = 0

    def plan_length(self, game: Game) -> int:
        """Return the steps of the planner's solution, or 0 if it does not win."""

        def ask() -> list[int]:
            plan = self._engine.load(game.problem, plan=True)["plan"]
            won = False
            for command in plan:
                won = self._engine.step(command)["won"]
            return [len(plan) if won else 0]

        (length,) = self._once(game, "plan", ask)
        return int(length)

    def play(self, game: Game, hint: Hint) -> Played:
        """Play one episode, or return its stored outcome."""
        ask = partial(play, self._engine, game, hint, self.limit)
        key = f"{self.limit}{json.dumps(hint)}"
        won, steps, found = self._once(game, key, lambda: astuple(ask())[:3])
        return Played(won, steps, tuple((what, kind) for what, kind in found))

    async def act(self, game: Game, shown: Shown) -> Played:
        """Play with the retrieved records: search first where the best success found its things."""
        successes = (record.details or {} for record, _ in shown if record.outcome == 1)
        return self.play(game, next((tuple(map(tuple, one["found"])) for one in successes), ()))

    def _once(self, game: Game, what: str, ask: Callable[[], Any]) -> Any:
        parts = "\0".join([AGENT_VERSION, game.problem, *game.receptacles, what])
        known = len(self._journal)
        found = self._journal.once(hashlib.sha256(parts.encode()).hexdigest()[:24], ask)
        if len(self._journal) > known:
            self.played += 1
            if self.played % 50 == 0:
                progress(f"traceretain: {self.played} episodes played on the engine")
        return found


@dataclass
class Stream:
    """Outcomes of tasks in order."""

    most_steps: int = 50
    games: list[str] = field(default_factory=list)
    won: list[bool] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    precision: list[float] = field(default_factory=list)
    similarity: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        """CEM's objective: success + .5 (1 - steps / most) + .5 P@5."""
        speed = 1 - fmean(self.steps) / self.most_steps
        return fmean(self.won) + 0.5 * speed + 0.5 * fmean(self.precision)


async def run_tasks(
    player: Player,
    games: Sequence[Game],
    bank: Bank | None,
    *,
    retrieved: int,
    failures: int = 0,
    write: bool = True,
) -> Stream:
    """Play the games in order, without a memory if `bank` is None.

    Each task is shown `retrieved` records. `failures` failed records of the same task follow each
    real one (the noisy writes).
    """
    stream = Stream(player.limit)
    for game in games:
        shown = [] if bank is None else await bank.retrieve(game.task, retrieved)
        played = await player.act(game, shown)
        stream.games.append(game.name)
        stream.won.append(played.won)
        stream.steps.append(played.steps)
        successes = [record.details or {} for record, _ in shown if record.outcome == 1]
        relevant = sum(is_relevant(details["signature"], game) for details in successes)
        stream.precision.append(relevant / len(shown) if shown else 0.0)
        stream.similarity.append(fmean(similarity for _, similarity in shown) if shown else 0.0)
        if bank is not None and write:
            await bank.end(make_experience(game, played))
            failed = make_experience(game, Played(False, player.limit))
            await bank.fill([failed] * failures)
    return stream


def is_relevant(signature: Sequence[str], game: Game) -> bool:
    """Return whether a record is of the game's family, with its object or its receptacle."""
    family, thing, _, receptacle = game.signature
    return signature[0] == family and (signature[1] == thing or signature[3] == receptacle)


def make_experience(game: Game, played: Played) -> Experience:
    """Return the record of an episode."""
    found = [list(pair) for pair in played.found]
    details = {"steps": played.steps, "signature": list(game.signature), "found": found}
    work = [f"{what} in {kind}" for what, kind in played.found] or played.commands
    execution = f"{'done' if played.won else 'failed'} in {played.steps} steps: {'; '.join(work)}"
    return Experience(game.task, execution, float(played.won), details)
