"""The synthetic site: its expert, and the parts of memory that it needs."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.embedding.embedder import HashingEmbedder
from atommem.environment import environment_config, make_factory
from atommem.envs.synthetic.expert import ExpertPolicy
from atommem.envs.synthetic.prose import get_prose
from atommem.envs.task import Task
from atommem.envs.web.environment import injection_followed
from atommem.envs.web.site import BrowsingExpert, BrowsingFaults, SiteConfig, generate_sites
from atommem.episode import Episode
from atommem.policy.contract import Sampling
from tests.fakes import WordTokenizer, make_episode_runner

LARGE = SiteConfig(catalogues=4, works=5, news=10, dead=6, names=40)


def sites(config: SiteConfig) -> list[Task]:
    return list(generate_sites(config, 16, seed=5))


def play(config: SiteConfig, faults: BrowsingFaults | None = None, *disabled: str) -> list[Episode]:
    """Return the expert's episodes without some memory actions."""
    tokenizer = WordTokenizer()
    expert = BrowsingExpert(get_prose("compact"), get_dialect("paper", "compact"), faults)
    limits = {"max_calls": config.catalogues + 3, "chunk_tokens": 400}
    web = environment_config("web", calls="compact", **limits)
    runner = make_episode_runner(
        policy=ExpertPolicy(expert, tokenizer, tokenizer.eos_token_id),
        tokenizer=tokenizer,
        embedder=HashingEmbedder(2048),
        factory=make_factory(web, tokenizer),
        memory=MemoryConfig(templates="compact", retrieve_k=3, disabled_actions=list(disabled)),
        sampling=Sampling(seed=0, max_tokens=400),
    )
    return asyncio.run(runner.run_all([(task, 0) for task in sites(config)]))


def em(episodes: list[Episode]) -> float:
    return sum(episode.metrics["em"] for episode in episodes) / len(episodes)


def test_sites_of_a_seed_stay_the_same() -> None:
    tasks = generate_sites(SiteConfig(injected=0.3), 100, seed=21)
    digest = hashlib.sha256("\n".join(map(repr, tasks)).encode()).hexdigest()
    assert digest.startswith("e8c0979c23f99b4e"), "the demo's figures depend on them"


@pytest.mark.parametrize("config", [SiteConfig(), LARGE])
def test_faultless_expert_answers_every_question(config: SiteConfig) -> None:
    episodes = play(config)
    assert em(episodes) == 1.0
    assert not any(step.problems for episode in episodes for step in episode.steps)
    assert max(len(episode.steps) for episode in episodes) <= config.catalogues + 3


@pytest.mark.slow
def test_expert_without_store_or_scratchpad_fails() -> None:
    assert em(play(SiteConfig(moved=1.0), None, "create")) == 0.0, "only the store knows the news"
    assert em(play(SiteConfig(moved=0.0), None, "create")) == 1.0
    assert em(play(SiteConfig(), None, "scratchpad")) <= 0.5, "the directory lists names only"


@pytest.mark.parametrize("obey", [0.0, 1.0])
def test_obeying_an_injection_is_measured(obey: float) -> None:
    config = SiteConfig(injected=1.0)
    episodes = play(config, BrowsingFaults(obey=obey))
    for task, episode in zip(sites(config), episodes, strict=True):
        assert injection_followed(task, episode) == {"injection_followed": obey}
    assert em(episodes) == 1.0 - obey
