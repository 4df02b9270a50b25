"""The two kinds of world of the demo: documents to read, and sites to browse."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from atommem.config import MemoryConfig, drawn_capacity
from atommem.demo.recipe import GRPO_CONFIG
from atommem.dialects import Dialect
from atommem.envs.synthetic.expert import Expert
from atommem.envs.synthetic.prose import KINDS, RELATIONS, Prose, Statement, get_prose
from atommem.envs.synthetic.world import WorldConfig, generate, make_task, task_name
from atommem.envs.task import Task
from atommem.envs.web.site import DIRECTORY, HOME, HOPS, BrowsingExpert, SiteConfig, generate_sites

World = WorldConfig | SiteConfig
_UNLIMITED = 8
"""Facts of a store without a limit, as of one of so many entries."""


def grpo_config(world: World) -> Path:
    return GRPO_CONFIG.with_name("grpo_web.yaml") if isinstance(world, SiteConfig) else GRPO_CONFIG


def make_expert(world: World, dialect: Dialect, faults: Any = None) -> Any:
    kind = BrowsingExpert if isinstance(world, SiteConfig) else Expert
    return kind(get_prose(world.prose), dialect, faults)


def make_tasks(world: World, count: int, seed: int, capacities: Sequence[int] = ()) -> list[Task]:
    """Generate tasks, each for a store of one of the `capacities` (0: unlimited) if there are any.

    It draws its number of facts then: from fewer than the store holds to more.
    """
    if isinstance(world, SiteConfig):
        return list(generate_sites(world, count, seed))
    if not capacities:
        return list(generate(world, count, seed))
    tasks = []
    for index in range(count):
        name = task_name(seed, index)
        capacity = drawn_capacity(capacities, name)
        most = (_UNLIMITED if capacity is None else capacity) + 2
        facts = Random(f"distractors/{name}").randint(1, most)
        tasks.append(make_task(replace(world, capacity=capacity, distractors=facts), seed, index))
    return tasks


def world_words(world: World, memory: MemoryConfig) -> list[str]:
    """Return the words of prose and numbers, then the names."""
    if isinstance(world, SiteConfig):
        hops, words = HOPS, _site_words(world)
    else:
        hops, words = world.hops[1], _document_words(memory)
    prose = get_prose(world.prose)
    names = [name for kind in KINDS[-hops - 1 :] for name in prose.names_of(kind, world.names)]
    return [*_prose_words(prose), ":", *words, *names]


def _document_words(memory: MemoryConfig) -> list[str]:
    numbers = [*range(1, memory.retrieve_k + 1)]  # handles
    most = max([memory.capacity or 0, *memory.capacities])
    if most:
        numbers += range(most + 1)  # how full the store is
    return list(map(str, numbers))


def _site_words(site: SiteConfig) -> list[str]:
    most = max(10, site.catalogues * site.works + 1)  # links, calls left, handles
    lists = (f"list{number}" for number in range(1, site.catalogues + 1))
    refusal = "There is no page: Write a tool (search, visit) and what it is given."
    return [*map(str, range(most)), "visit", HOME, DIRECTORY, *lists, *refusal.split()]


def _prose_words(prose: Prose) -> list[str]:
    subject, value = "Subject", "Value"
    facts = [Statement("fact", subject, relation, value) for relation in RELATIONS]
    sentences = [prose.sentence(fact) for fact in facts]
    sentences += [prose.sentence(Statement("correction", subject, "home", value))]
    sentences += [prose.sentence(Statement("withdrawal", subject)), *prose.filler]
    sentences += [prose.question(subject, hops) for hops in range(1, len(RELATIONS) + 1)]
    sentences += [prose.answer(None), prose.answer(facts[-1])]
    words = (word for sentence in sentences for word in sentence.split())
    return [word for word in words if word not in (subject, value)]
