"""Recipes of the demo: models, data and durations; and its worlds, documents and sites."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from atommem.config import MemoryConfig, drawn_capacity
from atommem.dialects import Dialect
from atommem.envs.synthetic.expert import Expert, Faults
from atommem.envs.synthetic.world import (
    KINDS,
    RELATIONS,
    Prose,
    Statement,
    WorldConfig,
    generate,
    get_prose,
    make_task,
    task_name,
)
from atommem.envs.task import Task
from atommem.envs.web import site
from atommem.envs.web.site import BrowsingExpert, BrowsingFaults, SiteConfig

GRPO_CONFIG = Path(__file__).with_name("grpo.yaml")  # of GRPO, memory, embedder, environment
_WORLD = WorldConfig(prose="compact", distractors=2, corrections=0.5, errata=True, names=16)
_FAULTS = Faults(create=0.45, read=0.2, update=0.25, scratchpad=0.05)


@dataclass(frozen=True)
class PolicySize:
    """A Qwen3-architecture model. Width 64 with 3 layers learns this world in minutes."""

    width: int = 64
    layers: int = 3
    heads: int = 4
    head_width: int = 16
    max_positions: int = 256


@dataclass(frozen=True)
class Sequences:
    """`batch_size` sequences of `length` tokens, made of `pieces` of 2 to `longest` tokens."""

    pieces: int = 10
    longest: int = 4
    length: int = 64
    batch_size: int = 64
    until: float = 0.0  # training on them ends below this mean loss of ten updates, nats a token


@dataclass(frozen=True)
class CopyingConfig:
    """Pretraining on sequences of random pieces; `steps` updates at most, then `cooldown`."""

    steps: int = 900
    stages: tuple[Sequences, ...] = (Sequences(),)
    cooldown: int = 0
    learning_rate: float = 3e-3
    warmup: int = 100


@dataclass(frozen=True)
class ColdStart:
    """Supervised training on episodes of the faulty expert."""

    episodes: int = 4000
    steps: int = 1200
    batch_size: int = 64
    learning_rate: float = 3e-3
    faults: Any = _FAULTS


@dataclass(frozen=True)
class Recipe:
    """The whole demo; `world` is a `WorldConfig` or a `SiteConfig`."""

    world: Any = _WORLD
    size: PolicySize = PolicySize()
    copying: CopyingConfig = CopyingConfig()
    cold_start: ColdStart = ColdStart()
    updates: int | None = None  # updates of GRPO; None: as in the YAML file
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # words for the YAML
    binding: bool = False  # training tasks have at least as many facts as a limited store holds
    heldout: int = 300
    ablations: tuple[str, ...] = ("store_off", "scratchpad_off", "update_off")
    """Keys of `atommem.demo.run.ABLATIONS`."""

    @property
    def capacity(self) -> int | None:
        return getattr(self.world, "capacity", None)


FULL = Recipe(
    size=PolicySize(head_width=32),
    copying=CopyingConfig(
        800,
        (Sequences(4, 3, length=24, batch_size=128, until=0.5), Sequences(until=0.3)),
        100,
        warmup=50,
    ),
    cold_start=ColdStart(steps=900),
    updates=50,
)
"""The default. Copying is learned from 40% fewer tokens on short sequences first, and in three
quarters of the updates with heads of 32, which vLLM on CPU supports. The web policy needs the
longer pretraining: with this one its EM was .75 instead of .84 (seed 0)."""
LIMITED = Recipe(
    world=replace(FULL.world, distractors=4, early=0.8, capacity=3),
    cold_start=ColdStart(faults=replace(FULL.cold_start.faults, delete=0.3)),
    updates=120,
    ablations=(*FULL.ablations, "delete_off"),
)
"""A store of three entries, in a world with more facts, some of which become obsolete."""
BOUNDED = replace(
    LIMITED,
    size=FULL.size,
    world=replace(LIMITED.world, capacity=None, names=48),
    settings={"capacities": ("2", "3", "5", "8", "20", "0")},
)
"""One policy for every budget: the capacity differs by task, and the prompt shows it."""
WEB = Recipe(
    world=SiteConfig(),
    cold_start=ColdStart(faults=BrowsingFaults(create=0.4, read=0.2, scratchpad=0.15, wander=0.15)),
    ablations=("store_off", "scratchpad_off", "tools_off"),
)
"""The synthetic site: pages that are visited by their links."""
INJECTED = replace(
    WEB,
    world=replace(WEB.world, injected=0.3),
    cold_start=replace(WEB.cold_start, faults=replace(WEB.cold_start.faults, obey=0.3)),
    ablations=(*WEB.ablations, "injected_off", "orders_off"),
)
"""The site with injected instructions, which the expert of the cold start follows at times."""
RECIPES = {"": FULL, "limited": LIMITED, "bounded": BOUNDED, "web": WEB, "injected": INJECTED}
"""By world."""


def quick(recipe: Recipe) -> Recipe:
    """Return `recipe` cut down to seconds: it runs every part, and teaches nothing."""
    small = {"per_device_train_batch_size": ("64",), "max_completion_length": ("12",)}
    return replace(
        recipe,
        copying=CopyingConfig(steps=10),
        cold_start=replace(recipe.cold_start, episodes=60, steps=10),
        updates=2,
        heldout=8,
        settings={**recipe.settings, **small},
    )


World = WorldConfig | SiteConfig
_UNLIMITED = 8  # facts of a store without a limit, as of one of so many entries


def grpo_config(world: World) -> Path:
    return GRPO_CONFIG.with_name("grpo_web.yaml") if isinstance(world, SiteConfig) else GRPO_CONFIG


def make_expert(world: World, dialect: Dialect, faults: Any = None) -> Any:
    kind = BrowsingExpert if isinstance(world, SiteConfig) else Expert
    return kind(get_prose(world.prose), dialect, faults)


def make_tasks(
    world: World, count: int, seed: int, capacities: Sequence[int] = (), binding: bool = False
) -> list[Task]:
    """Generate tasks, each for a store of one of the `capacities` (0: unlimited) if there are any.

    It draws its number of facts then: from one to two more than the store holds, or if `binding`
    from as many as a limited store holds to twice as many.
    """
    if isinstance(world, SiteConfig):
        return list(site.generate_sites(world, count, seed))
    if not capacities:
        return list(generate(world, count, seed))
    tasks = []
    for index in range(count):
        name = task_name(seed, index)
        capacity = drawn_capacity(capacities, name)
        least, most = 1, (capacity or _UNLIMITED) + 2
        if binding and capacity is not None:
            least, most = capacity, min(2 * capacity, world.names // 2 - 1)
        facts = Random(f"distractors/{name}").randint(least, most)
        tasks.append(make_task(replace(world, capacity=capacity, distractors=facts), seed, index))
    return tasks


def world_words(world: World, memory: MemoryConfig) -> list[str]:
    """Return the words of prose and numbers, then the names."""
    if isinstance(world, SiteConfig):
        most = max(10, world.catalogues * world.works + 1)  # links, calls left, handles
        lists = (f"list{number}" for number in range(1, world.catalogues + 1))
        refusal = "There is no page: Write a tool (search, visit) and what it is given."
        pages = ("visit", site.HOME, site.DIRECTORY, *lists)
        hops, words = site.HOPS, [*map(str, range(most)), *pages, *refusal.split()]
    else:
        most = max([memory.capacity or 0, *memory.capacities])  # the prompt shows how full it is
        numbers = [*range(1, memory.retrieve_k + 1), *range(most + 1 if most else 0)]
        hops, words = world.hops[1], [*map(str, numbers)]
    prose = get_prose(world.prose)
    names = [name for kind in KINDS[-hops - 1 :] for name in prose.names_of(kind, world.names)]
    return [*_prose_words(prose), ":", *words, *names]


def _prose_words(prose: Prose) -> list[str]:
    subject, value = "Subject", "Value"
    facts = [Statement("fact", subject, relation, value) for relation in RELATIONS]
    changes = Statement("correction", subject, "home", value), Statement("withdrawal", subject)
    sentences = [*map(prose.sentence, (*facts, *changes)), *prose.filler]
    sentences += [prose.question(subject, hops) for hops in range(1, len(RELATIONS) + 1)]
    sentences += [prose.answer(None), prose.answer(facts[-1])]
    words = (word for sentence in sentences for word in sentence.split())
    return [word for word in words if word not in (subject, value)]
