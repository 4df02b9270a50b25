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


def test_training_makes_what_can_be_predicted_likelier() -> None:
    model = make_model(vocabulary=60, spread=0.02)
    once = CopyingConfig(steps=1, batch_size=8, length=32, warmup=1)
    before = pretrain_copying(model, once, seed=0, progress=False)
    pretrain_copying(model, CopyingConfig(steps=60, batch_size=8, length=32, warmup=1), seed=1, progress=False)
    assert pretrain_copying(model, once, seed=0, progress=False) < before


def test_a_log_is_told_of_every_tenth(capfd: pytest.CaptureFixture[str]) -> None:
    pretrain_copying(make_model(vocabulary=60), CopyingConfig(steps=25, batch_size=1, length=8), seed=0)
    told = capfd.readouterr().err.splitlines()
    assert len(told) == 10
    assert told[0].startswith("copying: update 3 of 25, loss ")
    assert told[-1].startswith("copying: update 25 of 25, loss ")
