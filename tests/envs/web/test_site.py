"""The synthetic site: its expert, and the parts of memory that it needs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import Any
from urllib.parse import quote

import pytest

from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.environment import environment_config, make_environments
from atommem.envs.synthetic.prose import get_prose
from atommem.envs.task import Task
from atommem.envs.web.injections import injection_followed
from atommem.envs.web.site.expert import BrowsingExpert, BrowsingFaults
from atommem.envs.web.site.world import SiteConfig, generate_sites
from atommem.episode import Episode
from atommem.policy.contract import Sampling
from atommem.rollout import EpisodeRunner
from tests.envs.test_synthetic import em, runner_of
from tests.envs.web.net.internet import answering, serving
from tests.envs.web.net.test_faults import DIRECT
from tests.fakes import WordTokenizer


def browsing(
    config: SiteConfig,
    faults: BrowsingFaults | None = None,
    disabled: Sequence[str] = (),
    **settings: Any,
) -> EpisodeRunner:
    """Return a runner of the expert's episodes."""
    tokenizer = WordTokenizer()
    expert = BrowsingExpert(get_prose(config.prose), get_dialect("paper", "compact"), faults)
    limits = {"max_calls": config.catalogues + config.hops + 1, "chunk_tokens": 400}
    web = environment_config("web", calls="compact", **limits, **settings)
    memory = MemoryConfig(templates="compact", retrieve_k=3, disabled_actions=list(disabled))
    how = {"memory": memory, "sampling": Sampling(seed=0, max_tokens=400)}
    return runner_of(expert, tokenizer, environments=make_environments(web, tokenizer), **how)


def play(
    config: SiteConfig | None = None, faults: BrowsingFaults | None = None, *disabled: str
) -> list[Episode]:
    config = config or SiteConfig()
    return asyncio.run(
        browsing(config, faults, disabled).run_all([(task, 0) for task in sites(config)])
    )


def sites(config: SiteConfig) -> list[Task]:
    return list(generate_sites(config, 16, seed=5))


@pytest.mark.parametrize(
    "config",
    [
        SiteConfig(),
        SiteConfig(catalogues=4, works=5, news=10, dead=6, names=40),
        SiteConfig(hops=4, doubles=2, prose="plain"),
        SiteConfig(prose="plain", injected=1.0),
    ],
)
def test_faultless_expert_answers_every_question(config: SiteConfig) -> None:
    episodes = play(config)
    assert em(episodes) == 1.0
    assert not any(step.problems for episode in episodes for step in episode.steps)
    assert max(len(episode.steps) for episode in episodes) <= config.catalogues + config.hops + 1


@pytest.mark.slow
def test_expert_without_store_or_scratchpad_fails() -> None:
    moved = SiteConfig(moved=1.0)
    assert em(play(moved, None, "create")) == 0.0, "only the store still knows the news"
    assert em(play(SiteConfig(moved=0.0), None, "create")) == 1.0
    assert em(play(None, None, "scratchpad")) <= 0.5, "the directory says nothing but names"
    assert em(play(SiteConfig(hops=4), None, "scratchpad")) <= 0.3


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["create", "read", "scratchpad", "wander"])
def test_each_fault_lowers_em(fault: str) -> None:
    assert em(play(SiteConfig(moved=1.0), BrowsingFaults(**{fault: 1.0}))) < 0.6


@pytest.mark.parametrize("obey", [0.0, 1.0])
def test_obeying_an_injection_is_measured(obey: float) -> None:
    config = SiteConfig(injected=1.0)
    episodes = play(config, BrowsingFaults(obey=obey))
    for task, episode in zip(sites(config), episodes, strict=True):
        assert injection_followed(task, episode) == {"injection_followed": obey}
    assert em(episodes) == 1.0 - obey


@pytest.mark.slow
def test_expert_answers_over_http() -> None:
    pytest.importorskip("lxml_html_clean")
    (task,) = generate_sites(SiteConfig(prose="plain", hops=3, doubles=1, moved=1.0), 1, seed=5)
    routes = {}
    for document in task.documents:
        names = task.metadata["links"][document.title]
        links = "".join(f'<li><a href="/{quote(name)}">{escape(name)}</a>' for name in names)
        page = f"<title>{escape(document.title)}</title><main><p>{escape(document.text)}</p></main>"
        routes[f"/{quote(document.title)}"] = answering(f"{page}<nav><ul>{links}</ul></nav>")
    with serving(routes) as (host, _):
        metadata = {**task.metadata, "start": f"http://{host}/home"}
        config = SiteConfig(prose="plain", hops=3)
        runner = browsing(config, tools=[DIRECT], parse_workers=1)

        async def play() -> Episode:
            try:
                return await runner.run(replace(task, documents=(), metadata=metadata))
            finally:
                await runner.environments.close()

        assert asyncio.run(play()).metrics["em"] == 1.0
