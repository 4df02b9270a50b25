"""What the demo is made of: a tokenizer that knows all that is said, a small model, pretraining by copying."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from atommem.demo.copying import copying_rows, pretrain_copying
from atommem.demo.recipe import (
    FULL,
    INJECTED,
    LIMITED,
    MIXED,
    WEB,
    CopyingConfig,
    Recipe,
    Sequences,
)
from atommem.demo.settings import load_settings
from atommem.demo.tiny_policy import make_model, make_tokenizer
from atommem.demo.worlds import world_of
from atommem.dialects import get_dialect
from atommem.embedding import make_embedder
from atommem.environment import make_environments
from atommem.envs.synthetic.expert_policy import ExpertPolicy
from atommem.envs.synthetic.prose import get_prose
from atommem.policy.contract import Sampling
from tests.fakes import make_episode_runner
from tests.train.toys import make_model as make_toy_model

RECIPES = {"full": FULL, "limited": LIMITED, "web": WEB, "injected": INJECTED, "mixed": MIXED}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_every_word_of_prompts_and_demonstrations_is_one_known_token(
    recipe: Recipe, tmp_path: Path
) -> None:
    settings = load_settings(tmp_path, recipe)
    assert settings.run.memory.capacity == recipe.capacity
    tokenizer = make_tokenizer(recipe.world, settings.run.memory, settings.run.environment)
    world = world_of(recipe.world)
    dialect = get_dialect(settings.run.memory.dialect, settings.run.memory.templates)
    expert = world.expert(get_prose("compact"), dialect, None)
    runner = make_episode_runner(
        policy=ExpertPolicy(expert, tokenizer, tokenizer.eos_token_id),
        tokenizer=tokenizer,
        embedder=make_embedder(settings.run.embedder),
        environments=make_environments(settings.run.environment, tokenizer),
        keep_prompts=True,
        memory=settings.run.memory,
        sampling=Sampling(seed=0),
    )
    episodes = asyncio.run(
        runner.run_all([(task, 0) for task in world.generate(recipe.world, 40, 1)])
    )
    for episode in episodes:
        for step in episode.steps:
            assert tokenizer.unk_token_id not in step.prompt_ids + step.token_ids
            assert len(step.token_ids) == len(step.text.split()) + 1
            # What a model samples is turned back into the text that the parser reads.
            assert tokenizer.decode(step.token_ids, skip_special_tokens=True) == step.text
            assert len(step.token_ids) <= settings.args.max_completion_length
            assert len(step.prompt_ids) + 48 <= recipe.size.max_positions
    assert sum(episode.metrics["em"] for episode in episodes) / 40 >= 0.95
    model = make_model(recipe.size, tokenizer)
    assert 100_000 < model.num_parameters() < 1_000_000
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_predictable_tokens_follow_the_same_token_earlier() -> None:
    rows, predictable = copying_rows(
        range(5, 100), Sequences(length=48, batch_size=20), random.Random(0)
    )
    for row, known in zip(rows, predictable, strict=True):
        assert (len(row), len(known), min(row) >= 5) == (48, 48, True)
        for place, marked in enumerate(known):
            before = row[place - 1] if place else None
            earlier = [i for i in range(1, place) if row[i - 1] == before]
            if marked:
                # Tokens of a piece occur in no other piece, so every earlier occurrence goes on alike.
                assert {row[i] for i in earlier} == {row[place]}
    share = sum(map(sum, predictable)) / (20 * 48)
    assert 0.3 < share < 0.6


def copying(steps: int, until: float = 0.0, cooldown: int = 0) -> CopyingConfig:
    return CopyingConfig(
        steps, (Sequences(length=32, batch_size=8, until=until),), cooldown, warmup=1
    )


def test_training_makes_what_can_be_predicted_likelier() -> None:
    model = make_toy_model(vocabulary=60, spread=0.02)
    before = pretrain_copying(model, copying(steps=1), seed=0, progress=False)
    pretrain_copying(model, copying(steps=50, cooldown=10), seed=1, progress=False)
    assert pretrain_copying(model, copying(steps=1), seed=0, progress=False) < before


@pytest.mark.parametrize(
    ("until", "shorter", "updates"), [(9.0, [], 60), (0.0, [], 100), (9.0, [9.0] * 4, 100)]
)
def test_it_ends_when_it_has_learned(
    until: float, shorter: list[float], updates: int, capfd: pytest.CaptureFixture[str]
) -> None:
    config = copying(steps=200 if shorter else 50, until=until, cooldown=50)
    before = tuple(
        Sequences(pieces=3, longest=3, length=16, batch_size=2, until=one) for one in shorter
    )
    pretrain_copying(
        make_toy_model(vocabulary=60), replace(config, stages=(*before, *config.stages)), seed=0
    )
    told = [line.split(", loss")[0] for line in capfd.readouterr().err.splitlines()]
    assert told == [f"copying: update {update}" for update in range(50, updates + 1, 50)]
