"""Names of the synthetic world: one word each, made of parts, so that a tokenizer may treat them as one token."""

from __future__ import annotations

import random

_PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "guild": (
        ("Tide", "Lamp", "Loom", "Salt", "Barge", "Quill", "Furnace", "Orchard", "Harbour", "Bell"),
        ("wardens", "menders", "keepers", "wrights", "bearers", "callers", "tenders", "folk"),
    ),
    "prize": (
        ("May", "Frost", "Harvest", "Midsummer", "Rain", "Ember", "Thaw", "Moon", "Dawn", "Gale"),
        ("laurel", "ribbon", "goblet", "garland", "medal", "plume", "circlet", "palm"),
    ),
    "work": (
        (
            "Copper",
            "Glass",
            "Linen",
            "Walnut",
            "Granite",
            "Ivory",
            "Paper",
            "Amber",
            "Slate",
            "Cedar",
        ),
        ("harp", "clock", "kite", "lantern", "mosaic", "cradle", "sundial", "puppet"),
    ),
    "person": (
        ("Mar", "Tol", "Ves", "Bren", "Isk", "Od", "Per", "Lin", "Ras", "Hal"),
        ("ena", "vin", "ko", "dara", "mund", "ilo", "weth", "ani"),
    ),
    "town": (
        ("Oak", "Fen", "Stone", "Mill", "Heron", "Wolf", "Alder", "Cold", "Long", "Raven"),
        ("rest", "ford", "wick", "holm", "stead", "mere", "combe", "gate"),
    ),
}

KINDS = tuple(_PARTS)
MOST_NAMES = min(len(heads) * len(tails) for heads, tails in _PARTS.values())


def names_of(kind: str, count: int) -> list[str]:
    """The first `count` names of one kind, in an order that mixes their parts. At most `MOST_NAMES`."""
    heads, tails = _PARTS[kind]
    every = [head + tail for head in heads for tail in tails]
    random.Random(kind).shuffle(every)
    return every[:count]
