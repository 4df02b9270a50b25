"""An agent without a language model that knows how each family is done, and searches.

Without a memory it searches receptacles in a fixed order. With one it starts where the most similar
success found its things. Success and steps are the engine's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from papers.traceretain.engine import Engine
from papers.traceretain.games import LAMP, Game

Hint = tuple[tuple[str, str], ...]
"""Where a success found ``object`` or ``lamp``, by kind of receptacle."""
_APPLIANCES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
_THING = re.compile(r"\ba ([a-z]+ \d+)")


@dataclass(frozen=True)
class Played:
    """One episode: won within the limit, steps, and where it found things."""

    won: bool
    steps: int
    found: Hint


class _Ended(Exception):  # noqa: N818
    """The limit is reached, or the game is won."""


class _Episode:
    def __init__(self, engine: Engine, game: Game, hint: Hint, limit: int) -> None:
        self.engine, self.game, self.hint, self.limit = engine, game, hint, limit
        self.steps, self.won = 0, False
        self.seen: dict[
            str, list[str]
        ] = {}  # receptacle -> what is in it, as far as it has been looked into
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
        for place in self.order(role):
            if place not in self.seen:
                self.look_into(place)
            for thing in self.seen[place]:
                if thing.split()[0] == kind and thing not in taken:
                    self.look_into(place)
                    self.found.append((role, place.split()[0]))
                    return thing, place
        raise _Ended

    def order(self, role: str) -> Iterator[str]:
        """What has been seen, what the hint says, the rest."""
        likely = {kind for what, kind in self.hint if what == role}
        places = self.game.receptacles
        ranked = sorted(
            places, key=lambda place: (place not in self.seen, place.split()[0] not in likely)
        )
        return iter(ranked)

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
            if game.family in _APPLIANCES:
                appliance = self.place_of(_APPLIANCES[game.family])
                self.look_into(appliance)
                self.do(f"{game.family} {thing} with {appliance}")
            target = self.place_of(game.receptacle)
            self.look_into(target)
            self.do(f"move {thing} to {target}")


def play(engine: Engine, game: Game, hint: Hint, limit: int) -> Played:
    """One episode of at most `limit` steps."""
    engine.load(game.problem)
    episode = _Episode(engine, game, hint, limit)
    with suppress(_Ended):
        episode.play()
    return Played(episode.won, episode.steps, tuple(dict.fromkeys(episode.found)))
