"""A map whose copies share: against a plain dict, through copies of copies."""

from __future__ import annotations

import random

import pytest

from atommem.memory.shared_map import SharedMap


def test_against_dicts_and_their_copies() -> None:
    rng = random.Random(0)
    pairs: list[tuple[SharedMap[int], dict[int, int]]] = [(SharedMap(), {})]
    for number in range(4000):
        shared, plain = rng.choice(pairs)
        action = rng.choices(("new", "set", "delete", "copy"), (20, 6, 8, 1))[0]
        chosen = rng.choice(list(plain)) if plain else None
        if action == "new" or chosen is None:
            shared[number], plain[number] = number, number
        elif action == "set":
            shared[chosen], plain[chosen] = -number, -number
        elif action == "delete":
            del shared[chosen], plain[chosen]
        elif len(pairs) < 12:
            pairs.append((shared.copy(), dict(plain)))
    assert len(pairs) == 12
    for shared, plain in pairs:
        assert shared == plain
        assert (list(shared), len(shared)) == (list(plain), len(plain))
        assert (list(shared.values()), list(shared.items())) == (list(plain.values()), list(plain.items()))
        assert 9999 not in shared
        assert shared.get(9999) is None
        for call in (shared.__getitem__, shared.__delitem__):
            with pytest.raises(KeyError, match="9999"):
                call(9999)
