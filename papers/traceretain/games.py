"""Generated household games of ALFWorld's six families: rooms, objects, and a task in PDDL."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FAMILIES = ("pick", "look", "clean", "heat", "cool", "two")
_TEXTS = {
    "pick": "put some {object} on {receptacle}",
    "look": "look at {object} under the desklamp",
    "clean": "put a clean {object} in {receptacle}",
    "heat": "put a hot {object} in {receptacle}",
    "cool": "put a cool {object} in {receptacle}",
    "two": "put two {object} in {receptacle}",
}
_STATES = {"clean": "isClean", "heat": "isHot", "cool": "isCool"}
_ABLE = {"clean": "cleanable", "heat": "heatable", "cool": "coolable"}
_TYPES = {"sinkbasin": "SinkBasinType", "microwave": "MicrowaveType", "fridge": "FridgeType"}
"""The types that the domain's actions name are spelled as there."""
LAMP = "desklamp"


@dataclass(frozen=True)
class Game:
    """One game."""

    name: str
    family: str  # one of `FAMILIES`
    object: str
    receptacle: str  # empty in a ``look``
    receptacles: tuple[str, ...]  # names as the engine shows them, in the agent's search order
    problem: str  # in PDDL, for the engine's domain

    @property
    def task(self) -> str:
        """As the agent reads it."""
        return _TEXTS[self.family].format(object=self.object, receptacle=self.receptacle)

    @property
    def signature(self) -> tuple[str, str, str, str]:
        """Family, object, modifier, receptacle: ALFWorld's task key without its trial."""
        modifier = self.family if self.family in _STATES else ""
        return self.family, self.object, modifier, self.receptacle


def make_games(count: int, seed: int, house: Mapping[str, Any]) -> list[Game]:
    """Make games, families in turn; `house` is `load_published`."""
    rng = random.Random(f"games:{seed}")
    return [
        _make_game(f"{seed}-{i}", FAMILIES[i % len(FAMILIES)], rng, house) for i in range(count)
    ]


def _make_game(name: str, family: str, rng: random.Random, house: Mapping[str, Any]) -> Game:
    objects: Mapping[str, Any] = house["objects"]
    chosen = rng.choice([key for key, item in objects.items() if _fits(family, item, house)])
    item, room = objects[chosen], objects[chosen]["room"]
    target = "" if family == "look" else rng.choice([item["home"], *item["else"]])
    layout = [
        f"{kind} {i}" for kind, count in house["rooms"][room].items() for i in range(1, count + 1)
    ]
    copies = 2 if family == "two" else 1
    things = [(chosen, _place(item, target, rng, house, layout)) for _ in range(copies)]
    if family == "look":
        lit = [place for place in layout if place.split()[0] in house["lamp"][room]]
        things.append((LAMP, rng.choice(lit)))
    others = [key for key, other in objects.items() if other["room"] == room and key != chosen]
    strewn = rng.sample(others, min(4, len(others)))
    things += [(kind, _place(objects[kind], "", rng, house, layout)) for kind in strewn]
    search = layout.copy()
    rng.shuffle(search)
    problem = _problem(_goal(family, chosen, target), layout, things, house)
    return Game(name, family, chosen, target, tuple(search), problem)


def _fits(family: str, item: Mapping[str, Any], house: Mapping[str, Any]) -> bool:
    if family == "look":
        return item["room"] in house["lamp"]
    return bool(item.get(family)) if family in _STATES else True


def _place(
    item: Mapping[str, Any],
    target: str,
    rng: random.Random,
    house: Mapping[str, Any],
    layout: list[str],
) -> str:
    """Mostly at home; never where the task wants it to be."""
    kinds = [kind for kind in item["else"] if kind != target]
    at_home = item["home"] != target and rng.random() < house["at_home"]
    kind = item["home"] if at_home else rng.choice(kinds)
    return rng.choice([place for place in layout if place.split()[0] == kind])


def _problem(
    goal: str, layout: list[str], things: list[tuple[str, str]], house: Mapping[str, Any]
) -> str:
    """Every receptacle has a location of its own; the agent starts at another."""
    rooms = {place: _identifier(place) for place in layout}
    items = [(f"{kind}_bar_{i}", kind, place) for i, (kind, place) in enumerate(things, 1)]
    spots = {place: f"loc_bar_{i}" for i, place in enumerate(layout, 1)}
    kinds = sorted({place.split()[0] for place in layout})
    named = dict.fromkeys([*kinds, "sinkbasin", "microwave", "fridge"])
    types = sorted({kind for _, kind, _ in items})
    declared = [
        "agent1 - agent",
        "loc_bar_0 - location",
        *(f"{spot} - location" for spot in spots.values()),
        *(f"{name} - receptacle" for name in rooms.values()),
        *(f"{name} - object" for name, _, _ in items),
        *(f"{_type(kind)} - rtype" for kind in named),
        "KnifeType - otype",
        "ButterKnifeType - otype",
        *(f"{kind}Type - otype" for kind in types),
    ]
    facts = ["atLocation agent1 loc_bar_0"]
    for place, name in rooms.items():
        kind = place.split()[0]
        facts.append(f"receptacleAtLocation {name} {spots[place]}")
        facts.append(f"receptacleType {name} {_type(kind)}")
        facts += [f"openable {name}"] if kind in house["opens"] else []
    for name, kind, place in items:
        facts.append(f"objectType {name} {kind}Type")
        facts.append(f"inReceptacle {name} {rooms[place]}")
        facts.append(f"objectAtLocation {name} {spots[place]}")
        if kind == LAMP:
            facts.append(f"toggleable {name}")
            continue
        item = house["objects"][kind]
        facts.append(f"pickupable {name}")
        facts += [f"{able} {name}" for flag, able in _ABLE.items() if item.get(flag)]
        allowed = sorted({item["home"], *item["else"]} & set(kinds))
        facts += [f"canContain {_type(where)} {kind}Type" for where in allowed]
    lines = "\n".join(f"    ({fact})" for fact in dict.fromkeys(facts))
    return f"""(define (problem household)
  (:domain alfred)
  (:objects
    {" ".join(declared)}
  )
  (:init
{lines}
    (= (total-cost) 0)
  )
  (:goal {goal})
  (:metric minimize (total-cost))
)
"""


def _type(kind: str) -> str:
    return _TYPES.get(kind, f"{kind}Type")


def _identifier(place: str) -> str:
    """Return the engine's identifier: ``sink_bar_1_bar_sinkbasin`` for ``sinkbasin 1``."""
    kind, number = place.split()
    if kind.endswith("basin"):
        return f"{kind.removesuffix('basin')}_bar_{number}_bar_{kind}"
    return f"{kind}_bar_{number}"


def _goal(family: str, chosen: str, target: str) -> str:
    if family == "look":
        return (
            f"(exists (?l - object ?o - object ?a - agent) (and (objectType ?l {LAMP}Type) "
            "(toggleable ?l) "
            f"(isToggled ?l) (objectType ?o {chosen}Type) (holds ?a ?o)))"
        )
    there = f"(receptacleType ?r {_type(target)})"
    if family == "two":
        return (
            f"(exists (?r - receptacle ?o1 - object ?o2 - object) (and {there} (not (= ?o1 ?o2)) "
            f"(objectType ?o1 {chosen}Type) (objectType ?o2 {chosen}Type) (inReceptacle ?o1 ?r) "
            "(inReceptacle ?o2 ?r)))"
        )
    state = f" ({_STATES[family]} ?o)" if family in _STATES else ""
    inside = f"(objectType ?o {chosen}Type) (inReceptacle ?o ?r){state}"
    return f"(exists (?r - receptacle ?o - object) (and {there} {inside}))"
