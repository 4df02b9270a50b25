"""A seeded generator of small sites in which browsing needs memory.

A site has a home page with the news of the day, catalogues of works, a directory of persons, and a page for every
person. The question asks for the town of a work's maker, who may have moved since their page was written: only the
news says so, and they stand on the home page, where a visit begins and nobody yet knows which of them will matter.

- store: what the news say of several persons, until one of them is asked for (create, then read);
- scratchpad: the maker's name, which a catalogue tells, for the directory, where links say nothing but names;
- links: which catalogue has the work is not said; a catalogue's other works, and dead links, lead nowhere.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from atommem.envs.synthetic.names import MOST_NAMES, names_of
from atommem.envs.synthetic.prose import PROSES, Statement, get_prose
from atommem.envs.task import Document, Question, Task
from atommem.errors import ConfigError

HOME, DIRECTORY = "home", "people"


@dataclass(frozen=True)
class SiteConfig:
    """The knobs of the site."""

    prose: str = field(default="compact", metadata={"help": "plain (English) or compact (few words, tiny policies)."})
    catalogues: int = field(default=2, metadata={"help": "Pages of works."})
    works: int = field(default=3, metadata={"help": "Works on each of them, every one by a person of its own."})
    news: int = field(default=3, metadata={"help": "Persons whom the home page says to have moved."})
    moved: float = field(default=0.5, metadata={"help": "Chance that the person who is asked about is one of them."})
    dead: int = field(default=1, metadata={"help": "Persons whose link is dead; never the one that is asked for."})
    names: int = field(default=16, metadata={"help": f"Names in use of each kind, at most {MOST_NAMES}."})

    def __post_init__(self) -> None:
        if self.prose not in PROSES:
            raise ConfigError(f"prose is {self.prose!r}: give one of {', '.join(PROSES)}.")
        persons = self.catalogues * self.works
        for name, least in (("catalogues", 1), ("works", 1), ("news", 0), ("dead", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}: give at least {least}.")
        if not 0 <= self.moved <= 1:
            raise ConfigError(f"moved is {self.moved}: give a probability between 0 and 1.")
        if max(self.news, self.dead) >= persons or not persons + self.news <= self.names <= MOST_NAMES:
            raise ConfigError(
                f"{persons} persons ({self.catalogues} catalogues of {self.works} works), news {self.news}, dead "
                f"{self.dead} and names {self.names} do not fit: fewer news and dead links than persons, and a town "
                f"for each person and each piece of news, of at most {MOST_NAMES} names."
            )


def generate_sites(config: SiteConfig, count: int, seed: int) -> Iterator[Task]:
    """`count` tasks. Task i depends on `config`, `seed` and i only."""
    for index in range(count):
        yield make_site(config, seed, index)


def make_site(config: SiteConfig, seed: int, index: int) -> Task:
    """The task number `index` of the seed: a question, and the pages of its site as documents."""
    rng = random.Random(f"site:{seed}:{index}")
    prose = get_prose(config.prose)
    count = config.catalogues * config.works
    works, persons = (rng.sample(names_of(kind, config.names), count) for kind in ("work", "person"))
    towns = rng.sample(names_of("town", config.names), count + config.news)
    asked = rng.randrange(count)
    others = rng.sample([number for number in range(count) if number != asked], count - 1)
    movers = others[: config.news]
    if config.news and rng.random() < config.moved:
        movers[rng.randrange(config.news)] = asked
    dead = {persons[number] for number in rng.sample(others, config.dead)}
    news = [
        Statement("correction", persons[number], "home", town)
        for number, town in zip(movers, towns[count:], strict=True)
    ]
    made = [Statement("fact", work, "made", person) for work, person in zip(works, persons, strict=True)]
    lists = [f"list{number}" for number in range(1, config.catalogues + 1)]
    shelves = [made[start : start + config.works] for start in range(0, count, config.works)]
    pages = {HOME: news} | dict(zip(lists, shelves, strict=True)) | {DIRECTORY: []}
    links = {HOME: [*lists, DIRECTORY], DIRECTORY: rng.sample(persons, count)}
    links |= {name: [*(other for other in lists if other != name), DIRECTORY] for name in lists}
    for person, town in zip(persons, towns, strict=False):
        if person not in dead:
            pages[person], links[person] = [Statement("fact", person, "home", town)], [HOME, DIRECTORY]
    answer = next((told.value for told in news if told.subject == persons[asked]), towns[asked])
    needed = {HOME, lists[asked // config.works], persons[asked]}
    return Task(
        id=f"site-{seed}-{index}",
        questions=(
            Question(prose.question(works[asked], 2), (answer,), f"{seed}-{index}", {"moved": answer != towns[asked]}),
        ),
        documents=tuple(
            Document(title, " ".join(prose.sentence(told, rng) for told in said), title in needed)
            for title, said in pages.items()
        ),
        source="site",
        metadata={"prose": config.prose, "start": HOME, "links": links},
    )
