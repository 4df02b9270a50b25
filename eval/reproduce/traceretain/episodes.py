"""A stream of games under one rule; what was played before with the same hint is not played again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from atommem.eval.reproduce.traceretain.agent import Hint, Played, play
from atommem.eval.reproduce.traceretain.engine import Engine
from atommem.eval.reproduce.traceretain.games import Game
from atommem.eval.reproduce.traceretain.trajectories import Bank

_VERSION = "1"
"""Of the agent: outcomes of another one are not taken over."""


class Player:
    """Plays each game with each hint once; the agent and the engine decide nothing by chance.

    Args:
        engine: Opens the engine's process when it is first needed.
        path: Where outcomes are kept (JSON lines).
        limit: Most steps.
        tell: Gets progress.
    """

    def __init__(self, engine: Callable[[], Engine], path: Path, limit: int, tell: Callable[[str], None]) -> None:
        self._open, self._engine, self._limit, self._tell = engine, None, limit, tell
        self._path = path
        self._known: dict[str, list[object]] = {}
        self.played = 0
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                key, value = json.loads(line)
                self._known[key] = value

    _engine: Engine | None

    def engine(self) -> Engine:
        """The process."""
        if self._engine is None:
            self._engine = self._open()
        return self._engine

    def plan_length(self, game: Game) -> int:
        """Steps of the planner's way to win, played on the engine to its end; 0 where it does not win."""

        def ask() -> list[object]:
            plan = self.engine().load(game.problem, plan=True)["plan"]
            won = False
            for command in plan:
                won = bool(self.engine().step(command)["won"])
            return [len(plan) if won else 0]

        return int(str(self._remember(game, "plan", ask)[0]))

    def play(self, game: Game, hint: Hint) -> Played:
        """One episode."""

        def ask() -> list[object]:
            found = play(self.engine(), game, hint, self._limit)
            return [found.won, found.steps, found.found]

        won, steps, found = self._remember(game, json.dumps(hint), ask)
        assert isinstance(found, (list, tuple))
        return Played(bool(won), int(str(steps)), tuple((what, kind) for what, kind in found))

    def _remember(self, game: Game, what: str, ask: Callable[[], list[object]]) -> list[object]:
        parts = "\0".join([_VERSION, str(self._limit), game.problem, *game.receptacles, what])
        key = hashlib.sha256(parts.encode()).hexdigest()[:24]
        if key not in self._known:
            self._known[key] = ask()
            self.played += 1
            if self.played % 50 == 0:
                self._tell(f"traceretain: {self.played} episodes played on the engine")
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, self._known[key]]) + "\n")
        return self._known[key]

    def close(self) -> None:
        """End the process."""
        if self._engine is not None:
            self._engine.__exit__(None, None, None)


@dataclass
class Stream:
    """What became of each task, in order."""

    won: list[bool] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    precision: list[float] = field(default_factory=list)
    similarity: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        """What CEM ranks by: success + .5 (1 - steps / 50) + .5 P@5."""
        return fmean(self.won) + 0.5 * (1 - fmean(self.steps) / 50) + 0.5 * fmean(self.precision)


def run_tasks(
    player: Player,
    games: Sequence[tuple[int, Game]],
    bank: Bank | None,
    *,
    retrieved: int,
    failures: int = 0,
    write: bool = True,
    first: int = 1,
) -> Stream:
    """Play the games in order.

    Args:
        player: Of the episodes.
        games: Each with the number of its task's text.
        bank: None is an agent without memory.
        retrieved: Records that a task is shown.
        failures: Failed records with the same task that follow each real one (the noisy writes).
        write: Whether the bank is written to.
        first: Number of the first episode.
    """
    stream = Stream()
    for episode, (text, game) in enumerate(games, first):
        shown = [] if bank is None else bank.retrieve(text, retrieved)
        hint = next((record.found for record, _ in shown if record.success), ())
        played = player.play(game, hint)
        stream.won.append(played.won)
        stream.steps.append(played.steps)
        stream.precision.append(fmean(r.relevant_to(game.signature) for r, _ in shown) if shown else 0.0)
        stream.similarity.append(fmean(similarity for _, similarity in shown) if shown else 0.0)
        if bank is None:
            continue
        if write:
            bank.observe(shown, played.won, episode)
            bank.write(text, game.signature, played.won, played.steps, played.found, episode)
            for _ in range(failures):
                bank.write(text, game.signature, False, bank.steps, (), episode)
    return stream
