"""The synthetic site over a real HTTP server, read as the live web is."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from html import escape
from urllib.parse import quote

import pytest

from atommem.envs.task import Task
from atommem.envs.web.site.world import SiteConfig, generate_sites
from atommem.episode import Episode
from tests.envs.web.net.internet import answering, serving
from tests.envs.web.net.test_faults import DIRECT
from tests.envs.web.test_site import browsing

COUNT = 3
CONFIG = SiteConfig(prose="plain", hops=3, doubles=1, moved=1.0)


def page(task: Task, title: str, text: str) -> str:
    """The HTML of one of the task's pages."""
    folder = f"/{quote(task.id)}"
    links = [f'<li><a href="{folder}/{quote(name)}">{escape(name)}</a>' for name in task.metadata["links"][title]]
    return f"<title>{escape(title)}</title><main><p>{escape(text)}</p></main><nav><ul>{''.join(links)}</ul></nav>"


def test_the_expert_answers_every_question_over_http() -> None:
    pytest.importorskip("lxml_html_clean")
    tasks = list(generate_sites(CONFIG, COUNT, seed=5))
    routes = {
        f"/{quote(task.id)}/{quote(document.title)}": answering(page(task, document.title, document.text))
        for task in tasks
        for document in task.documents
    }
    with serving(routes) as (host, asked):
        begun = [
            replace(task, documents=(), metadata={**task.metadata, "start": f"http://{host}/{quote(task.id)}/home"})
            for task in tasks
        ]
        runner = browsing(CONFIG, tools=[DIRECT], parse_workers=1)

        async def play() -> list[Episode]:
            try:
                return await runner.run_all([(task, 0) for task in begun])
            finally:
                await runner.environments.close()

        episodes = asyncio.run(play())
    assert [episode.metrics["em"] for episode in episodes] == [1.0] * COUNT, [
        [step.observation.label for step in episode.steps] for episode in episodes
    ]
    visited = {path for path, _, _ in asked if "robots" not in path}
    assert {path.rpartition("/")[2] for path in visited} >= {"home", "prizes", "people"}
