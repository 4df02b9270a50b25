"""The demo's tokenizer, model and pretraining."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from atommem.demo.copying import pretrain_copying
from atommem.demo.recipe import FULL, INJECTED, WEB, CopyingConfig, Recipe, Sequences
from atommem.demo.run import load_settings
from atommem.demo.tiny_policy import make_model, make_tokenizer
from atommem.demo.worlds import make_expert, make_tasks
from atommem.dialects import get_dialect
from atommem.envs.synthetic.expert import ExpertPolicy
from atommem.policy.contract import Sampling
from atommem.rollout import EpisodeRunner
from atommem.run import build_agent
from tests.train.toys import make_model as make_toy_model


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [FULL, WEB, INJECTED], ids=["full", "web", "injected"])
def test_tokenizer_of_a_recipe_knows_every_word(recipe: Recipe, tmp_path: Path) -> None:
    settings = load_settings(tmp_path, recipe)
    run = settings.run
    run.sampling = Sampling(seed=0)
    tokenizer = make_tokenizer(recipe.world, run.memory, run.environment)
    expert = make_expert(recipe.world, get_dialect(run.memory.dialect, run.memory.templates))
    policy = ExpertPolicy(expert, tokenizer, tokenizer.eos_token_id)
    agent = build_agent(run, policy, tokenizer=tokenizer, keep_prompts=True)
    jobs = [(task, 0) for task in make_tasks(recipe.world, 40, 1)]
    episodes = asyncio.run(EpisodeRunner(agent).run_all(jobs))
    for step in (step for episode in episodes for step in episode.steps):
        assert tokenizer.unk_token_id not in step.prompt_ids + step.token_ids
        assert tokenizer.decode(step.token_ids, skip_special_tokens=True) == step.text
        assert len(step.token_ids) <= settings.args.max_completion_length
        assert len(step.prompt_ids) + 48 <= recipe.size.max_positions
    assert sum(episode.metrics["em"] for episode in episodes) / 40 >= 0.95
    assert 100_000 < make_model(recipe.size, tokenizer).num_parameters() < 1_000_000


@pytest.mark.slow
def test_pretrain_copying_lowers_the_loss() -> None:
    model = make_toy_model(vocabulary=60, spread=0.02)
    lengths = (Sequences(length=32, batch_size=8),)
    losses = [
        pretrain_copying(model, CopyingConfig(steps, lengths, 0, warmup=1), seed, progress=False)
        for seed, steps in enumerate((1, 50, 1))
    ]
    assert losses[2] < losses[0]
