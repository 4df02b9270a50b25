"""A stream of games under one rule; a game is played once with each hint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

from papers.experience import Bank, Experience
from papers.journal import Journal
from papers.traceretain.agent import Hint, Played, play
from papers.traceretain.engine import Engine
from papers.traceretain.games import Game

_VERSION = "1"
"""Of the agent: outcomes of another one are not taken over."""


class Player:
    """Plays each game with each hint once; the agent and the engine decide nothing by chance.

    Args:
        engine: On which.
        journal: Keeps outcomes.
        limit: Most steps.
        progress: Gets progress.
    """

    def __init__(
        self, engine: Engine, journal: Journal, limit: int, progress: Callable[[str], None]
    ) -> None:
        self._engine, self._journal, self._tell = engine, journal, progress
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
        """One episode."""
        ask = partial(play, self._engine, game, hint, self.limit)
        won, steps, found = self._once(
            game, f"{self.limit}{json.dumps(hint)}", lambda: astuple(ask())
        )
        return Played(won, steps, tuple((what, kind) for what, kind in found))

    def _once(self, game: Game, what: str, ask: Callable[[], Any]) -> Any:
        parts = "\0".join([_VERSION, game.problem, *game.receptacles, what])
        known = len(self._journal)
        found = self._journal.once(hashlib.sha256(parts.encode()).hexdigest()[:24], ask)
        if len(self._journal) > known:
            self.played += 1
            if self.played % 50 == 0:
                self._tell(f"traceretain: {self.played} episodes played on the engine")
        return found


@dataclass
class Stream:
    """What became of each task, in order."""

    most_steps: int = 50
    games: list[str] = field(default_factory=list)
    won: list[bool] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    precision: list[float] = field(default_factory=list)
    similarity: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        """What CEM ranks by: success + .5 (1 - steps / most) + .5 P@5."""
        return (
            fmean(self.won)
            + 0.5 * (1 - fmean(self.steps) / self.most_steps)
            + 0.5 * fmean(self.precision)
        )


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
        player: Of the episodes.
        games: The stream.
        bank: None is an agent without memory.
        retrieved: Records that a task is shown.
        failures: Failed records with the same task that follow each real one (the noisy writes).
        write: Whether the bank is written to.
    """
    stream = Stream(player.limit)
    for game in games:
        shown = [] if bank is None else await bank.retrieve(game.task, retrieved)
        records = [(record, record.details or {}) for record, _ in shown]
        hint = next((_hint(details) for record, details in records if record.outcome == 1), ())
        played = player.play(game, hint)
        stream.games.append(game.name)
        stream.won.append(played.won)
        stream.steps.append(played.steps)
        relevant = [
            record.outcome == 1 and is_relevant(details["signature"], game)
            for record, details in records
        ]
        stream.precision.append(fmean(relevant) if relevant else 0.0)
        stream.similarity.append(fmean(similarity for _, similarity in shown) if shown else 0.0)
        if bank is not None and write:
            await bank.end(_experience(game, played))
            await bank.fill([_experience(game, Played(False, player.limit, ()))] * failures)
    return stream


def is_relevant(signature: Sequence[str], game: Game) -> bool:
    """A record of that signature is of the game's family, with its object or its receptacle."""
    family, thing, _, receptacle = game.signature
    return signature[0] == family and (signature[1] == thing or signature[3] == receptacle)


def _experience(game: Game, played: Played) -> Experience:
    details = {
        "steps": played.steps,
        "signature": list(game.signature),
        "found": [list(pair) for pair in played.found],
    }
    told = ", ".join(f"{what} in {kind}" for what, kind in played.found)
    return Experience(
        game.task, f"{'done' if played.won else 'failed'}: {told}", float(played.won), details
    )


def _hint(details: Mapping[str, Any]) -> Hint:
    return tuple((what, kind) for what, kind in details["found"])
