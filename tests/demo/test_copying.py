"""Copying sequences: what is marked as predictable is, by looking back alone."""

from __future__ import annotations

import random

import pytest

from atommem.demo.copying import copying_rows, pretrain_copying
from atommem.demo.recipe import CopyingConfig, CopyingStage
from tests.train.toys import make_model


def test_predictable_tokens_follow_the_same_token_earlier() -> None:
    rows, predictable = copying_rows(range(5, 100), 20, 10, 48, random.Random(0))
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


def of(*stages: CopyingStage, **settings: int) -> CopyingConfig:
    return CopyingConfig(stages, tokens=256, warmup=1, **settings)


def test_training_makes_what_can_be_predicted_likelier() -> None:
    model = make_model(vocabulary=60, spread=0.02)
    once = of(CopyingStage(pieces=10, length=32, steps=1))
    before = pretrain_copying(model, once, seed=0, progress=False)
    pretrain_copying(model, of(CopyingStage(pieces=10, length=32, steps=60)), seed=1, progress=False)
    assert pretrain_copying(model, once, seed=0, progress=False) < before


def test_a_stage_ends_when_it_is_learned(capfd: pytest.CaptureFixture[str]) -> None:
    known, unknown = (
        CopyingStage(pieces=pieces, length=8, steps=60, until=until) for pieces, until in ((2, 9), (3, 0))
    )
    pretrain_copying(make_model(vocabulary=60), of(known, unknown), seed=0)
    told = capfd.readouterr().err.splitlines()
    assert [line.split(", loss")[0] for line in told] == ["copying: update 50, 3 pieces in 8 tokens"]
