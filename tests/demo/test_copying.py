"""Copying sequences: what is marked as predictable is, by looking back alone."""

from __future__ import annotations

import random

import pytest

from atommem.demo.copying import copying_rows, pretrain_copying
from atommem.demo.recipe import CopyingConfig
from tests.train.toys import make_model


def test_predictable_tokens_follow_the_same_token_earlier() -> None:
    rows, predictable = copying_rows(range(5, 100), 20, 48, random.Random(0))
    assert all(len(row) == len(known) == 48 for row, known in zip(rows, predictable, strict=True))
    for row, known in zip(rows, predictable, strict=True):
        assert min(row) >= 5
        for place, marked in enumerate(known):
            before = row[place - 1] if place else None
            earlier = [i for i in range(1, place) if row[i - 1] == before]
            if marked:
                # Tokens of a piece occur in no other piece, so every earlier occurrence goes on alike.
                assert {row[i] for i in earlier} == {row[place]}
    share = sum(map(sum, predictable)) / (20 * 48)
    assert 0.3 < share < 0.6


def of(steps: int, until: float = 0.0, cooldown: int = 0) -> CopyingConfig:
    return CopyingConfig(steps, until, cooldown, batch_size=8, length=32, warmup=1)


def test_training_makes_what_can_be_predicted_likelier() -> None:
    model = make_model(vocabulary=60, spread=0.02)
    before = pretrain_copying(model, of(steps=1), seed=0, progress=False)
    pretrain_copying(model, of(steps=50, cooldown=10), seed=1, progress=False)
    assert pretrain_copying(model, of(steps=1), seed=0, progress=False) < before


@pytest.mark.parametrize(("until", "updates"), [(9.0, 60), (0.0, 100)])
def test_it_ends_when_it_has_learned(until: float, updates: int, capfd: pytest.CaptureFixture[str]) -> None:
    pretrain_copying(make_model(vocabulary=60), of(steps=50, until=until, cooldown=50), seed=0)
    told = [line.split(", loss")[0] for line in capfd.readouterr().err.splitlines()]
    assert told == [f"copying: update {update}" for update in range(50, updates + 1, 50)]
