"""A stream of games under one rule; a game is played once with each hint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

from papers.experience import Bank, Experience
from papers.experiment import Journal, progress
from papers.traceretain.engine import Games, Hint, Played, play
from papers.traceretain.games import Game

AGENT_VERSION = "1"
"""Stored outcomes of another version are not used."""


class Player:
    """Plays each game with each hint once; agent and engine are deterministic.

    Args:
        engine: Plays.
        journal: Stores outcomes.
        limit: Most steps.
    """

    def __init__(self, engine: Games, journal: Journal, limit: int) -> None:
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
        won, steps, found = self._once(game, key, lambda: astuple(ask()))
        return Played(won, steps, tuple((what, kind) for what, kind in found))

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
    """Play the games in order.

    Args:
        player: Plays the episodes.
        games: The stream.
        bank: None is an agent without memory.
        retrieved: Records shown for a task.
        failures: Failed records of the same task after each real one (the noisy writes).
        write: Whether the bank is written to.
    """
    stream = Stream(player.limit)
    for game in games:
        shown = [] if bank is None else await bank.retrieve(game.task, retrieved)
        successes = [record.details or {} for record, _ in shown if record.outcome == 1]
        hint = next((tuple(map(tuple, details["found"])) for details in successes), ())
        played = player.play(game, hint)
        stream.games.append(game.name)
        stream.won.append(played.won)
        stream.steps.append(played.steps)
        relevant = sum(is_relevant(details["signature"], game) for details in successes)
        stream.precision.append(relevant / len(shown) if shown else 0.0)
        stream.similarity.append(fmean(similarity for _, similarity in shown) if shown else 0.0)
        if bank is not None and write:
            await bank.end(make_experience(game, played))
            failed = make_experience(game, Played(False, player.limit, ()))
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
    places = ", ".join(f"{what} in {kind}" for what, kind in played.found)
    execution = f"{'done' if played.won else 'failed'}: {places}"
    return Experience(game.task, execution, float(played.won), details)
