"""The tokenizer knows all that the demo's prompts and demonstrations say; the model is what the recipe says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from atommem.demo.recipe import FULL, INJECTED, LIMITED, MIXED, WEB, PolicySize, Recipe
from atommem.demo.settings import Settings, load_settings
from atommem.demo.tiny_policy import make_model, make_tokenizer
from atommem.demo.worlds import world_of
from atommem.embedding import make_embedder
from atommem.environment import make_environments
from atommem.envs.synthetic.expert_policy import ExpertPolicy
from atommem.envs.synthetic.prose import get_prose
from atommem.policy.contract import Sampling
from atommem.prompts import PromptBuilder
from tests.fakes import make_episode_runner


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return load_settings(tmp_path_factory.mktemp("demo"), seed=0, updates=None)


RECIPES = {"full": FULL, "limited": LIMITED, "web": WEB, "injected": INJECTED, "mixed": MIXED}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_every_word_of_prompts_and_demonstrations_is_one_known_token(recipe: Recipe, tmp_path: Path) -> None:
    settings = load_settings(tmp_path, 0, None, recipe.capacity, world_of(recipe.world), recipe.settings)
    assert settings.memory.capacity == recipe.capacity
    tokenizer = make_tokenizer(recipe.world, settings.memory, settings.environment)
    world = world_of(recipe.world)
    expert = world.expert(get_prose("compact"), dialect_of(settings), None)
    policy = ExpertPolicy(expert, tokenizer, tokenizer.eos_token_id)
    runner = make_episode_runner(
        policy=policy,
        tokenizer=tokenizer,
        embedder=make_embedder(settings.embedder),
        environments=make_environments(settings.environment, tokenizer),
        keep_prompts=True,
        memory=settings.memory,
        sampling=Sampling(seed=0),
    )
    episodes = asyncio.run(runner.run_all([(task, 0) for task in world.generate(recipe.world, 40, 1)]))
    for episode in episodes:
        for step in episode.steps:
            assert tokenizer.unk_token_id not in step.prompt_ids + step.token_ids
            assert len(step.token_ids) == len(step.text.split()) + 1
            # What a model samples is turned back into the text that the parser reads.
            assert tokenizer.decode(step.token_ids, skip_special_tokens=True) == step.text
            assert len(step.token_ids) <= settings.train.max_completion_length
            assert len(step.prompt_ids) + 48 <= recipe.size.max_positions
    assert sum(episode.metrics["em"] for episode in episodes) / 40 >= 0.95


def dialect_of(settings: Settings):  # type: ignore[no-untyped-def]
    from atommem.dialects import get_dialect

    return get_dialect(settings.memory.dialect, settings.memory.templates)


def test_the_model_is_small_and_shaped_like_qwen3(settings: Settings) -> None:
    tokenizer = make_tokenizer(FULL.world, settings.memory)
    model = make_model(PolicySize(), tokenizer)
    assert model.config.model_type == "qwen3"
    assert 100_000 < sum(parameter.numel() for parameter in model.parameters()) < 1_000_000
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    environments = make_environments(settings.environment, tokenizer)
    prompts = PromptBuilder.of(tokenizer, dialect_of(settings), settings.memory, environments)
    assert "system" not in prompts.system
