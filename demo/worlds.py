"""The worlds that the demo can train in, by the type of their settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from atommem.config import MemoryConfig
from atommem.demo.recipe import GRPO_CONFIG
from atommem.dialects import Dialect
from atommem.envs.synthetic.expert import Expert
from atommem.envs.synthetic.prose import KINDS, RELATIONS, Prose, Statement, get_prose, names_of
from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.envs.task import Task
from atommem.envs.web.site.expert import BrowsingExpert
from atommem.envs.web.site.world import DIRECTORY, HOME, OLD, REGISTERS, SiteConfig, generate_sites


@dataclass(frozen=True)
class World:
    """A world as the demo uses it.

    Attributes:
        environment: Name of its environment.
        grpo_config: YAML file of GRPO, memory, embedder and environment.
        generate: Makes tasks from settings, count and seed.
        expert: Makes the expert from prose, dialect and faults.
        hops: Most links from a question to its answer.
        words: Words that are not in templates, names or sentences.
    """

    environment: str
    grpo_config: Path
    generate: Callable[[Any, int, int], Iterator[Task]]
    expert: Callable[[Prose, Dialect, Any], Any]
    hops: Callable[[Any], int]
    words: Callable[[Any, MemoryConfig], list[str]]


def world_of(config: WorldConfig | SiteConfig) -> World:
    """Return the world of these settings."""
    return _WORLDS[type(config)]


def bounded_world(world: WorldConfig, capacity: int | None, task_id: str) -> WorldConfig:
    """Return `world` for a store of `capacity` entries.

    The task draws the number of facts: from fewer than the store holds to more.
    """
    most = (_UNLIMITED if capacity is None else capacity) + 2
    return replace(
        world, capacity=capacity, distractors=Random(f"distractors/{task_id}").randint(1, most)
    )


def world_words(config: WorldConfig | SiteConfig, memory: MemoryConfig) -> list[str]:
    """Return the words of prose and numbers, then the names."""
    world, prose = world_of(config), get_prose(config.prose)
    hops = world.hops(config)
    names = [name for kind in KINDS[-hops - 1 :] for name in names_of(kind, config.names)]
    return [*_prose_words(prose), ":", *world.words(config, memory), *names]


def _document_words(config: WorldConfig, memory: MemoryConfig) -> list[str]:
    numbers = [*range(1, memory.retrieve_k + 1)]  # handles
    most = max([memory.capacity or 0, *memory.capacities])
    if most:
        numbers += range(most + 1)  # how full the store is
    return list(map(str, numbers))


def _site_words(config: SiteConfig, memory: MemoryConfig) -> list[str]:
    most = max(
        10, config.catalogues * config.works + config.doubles + 1
    )  # links, calls left, handles
    lists = (f"list{number}" for number in range(1, config.catalogues + 1))
    refusal = "There is no page: Write a tool (search, visit) and what it is given."
    others = [*[*REGISTERS.values()][4 - config.hops :], *([OLD] if config.doubles else [])]
    return [*map(str, range(most)), "visit", HOME, DIRECTORY, *lists, *others, *refusal.split()]


def _prose_words(prose: Prose) -> list[str]:
    subject, value = "Subject", "Value"
    facts = [Statement("fact", subject, relation, value) for relation in RELATIONS]
    sentences = [prose.sentence(fact) for fact in facts]
    sentences += [prose.sentence(Statement("correction", subject, "home", value))]
    sentences += [prose.sentence(Statement("withdrawal", subject)), *prose.filler]
    sentences += [prose.question(subject, hops) for hops in range(1, len(RELATIONS) + 1)]
    sentences += [prose.answer(None), prose.answer(facts[-1])]
    return [
        word for sentence in sentences for word in sentence.split() if word not in (subject, value)
    ]


_UNLIMITED = 8
"""Facts of a store without a limit, as of one of so many entries."""
_WORLDS: dict[type, World] = {
    WorldConfig: World(
        "longdoc", GRPO_CONFIG, generate, Expert, lambda config: config.hops[1], _document_words
    ),
    SiteConfig: World(
        "web",
        GRPO_CONFIG.with_name("grpo_web.yaml"),
        generate_sites,
        BrowsingExpert,
        lambda config: config.hops,
        _site_words,
    ),
}
