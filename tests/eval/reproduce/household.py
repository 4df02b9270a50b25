"""A stand-in for ALFWorld's engine that reads the same problems: for tests of what stands around it."""

from __future__ import annotations

import re
from typing import Any

_STATES = {"clean": "isClean", "heat": "isHot", "cool": "isCool"}


class Household:
    """Understands the commands that the agent uses, and the goals of `games`."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.loads = 0

    def load(self, problem: str, plan: bool = False) -> dict[str, Any]:
        """Start; there is a plan of one command, which wins nothing."""
        self.loads += 1
        problem, _, self.goal = problem.partition("(:goal")
        self.places: dict[str, str] = {}
        shown = engine_names(re.findall(r"(\S+_bar_\S+) - (?:receptacle|object)", problem))
        self.openable = {shown[name] for name in re.findall(r"\(openable (\S+)\)", problem)}
        for thing, place in re.findall(r"\(inReceptacle (\S+) (\S+)\)", problem):
            self.places[shown[thing]] = shown[place]
        self.opened: set[str] = set()
        self.states: set[tuple[str, str]] = set()
        self.at = self.held = ""
        return {"text": "", "won": False, **({"plan": ["look"]} if plan else {})}

    def step(self, command: str) -> dict[str, Any]:
        """One command."""
        self.commands.append(command)
        text = "Nothing happens."
        words = command.split()
        if command.startswith("go to "):
            self.at = command[6:]
            text = self._inside() if self._open(self.at) else f"The {self.at} is closed."
        elif words[0] == "open" and self.at == command[5:]:
            self.opened.add(self.at)
            text = self._inside()
        elif words[0] == "take" and self._open(self.at) and not self.held:
            thing, place = " ".join(words[1:3]), " ".join(words[4:])
            if self.places.get(thing) == place == self.at:
                self.held, self.places[thing], text = thing, "", "You pick it up."
        elif words[0] == "move" and self.held and self._open(self.at):
            self.places[self.held], self.held, text = self.at, "", "You move it."
        elif words[0] in _STATES and self.held:
            self.states.add((_STATES[words[0]], self.held))
        elif words[0] == "use" and self.places.get(" ".join(words[1:])) == self.at:
            self.states.add(("isToggled", self.held))
        return {"text": text, "won": self._won()}

    def _open(self, place: str) -> bool:
        return place not in self.openable or place in self.opened

    def _inside(self) -> str:
        things = [f"a {thing}" for thing, place in self.places.items() if place == self.at]
        return f"In it, you see {', '.join(things) or 'nothing'}."

    def _won(self) -> bool:
        kinds = re.findall(r"objectType \?o\d? (\w+)Type", self.goal)
        if "isToggled" in self.goal:
            return any(state == "isToggled" and thing.split()[0] == kinds[-1] for state, thing in self.states)
        target = re.findall(r"receptacleType \?r (\w+)Type", self.goal)[0].lower()
        state = re.findall(r"\((is\w+) \?o\)", self.goal)
        there = [
            thing
            for thing, place in self.places.items()
            if thing.split()[0] == kinds[0]
            and place.split()[:1] == [target]
            and (not state or (state[0], thing) in self.states)
        ]
        return len(there) >= len(kinds)


def engine_names(identifiers: list[str]) -> dict[str, str]:
    """``sink_bar_1_bar_sinkbasin`` as the engine shows it: the last in the alphabet is number 1 of its kind."""
    kinds: dict[str, list[str]] = {}
    for identifier in sorted(identifiers, reverse=True):
        kind, _, *basin = identifier.split("_bar_")
        kinds.setdefault(basin[0] if basin else kind, []).append(identifier)
    return {name: f"{kind} {i}" for kind, found in kinds.items() for i, name in enumerate(found, 1)}
