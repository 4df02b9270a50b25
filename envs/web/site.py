"""Small generated sites in which browsing needs memory, and a scripted expert that browses them.

A site has a home page with the news of the day, catalogues of works, a directory of persons, and a
page for each person. The question asks for the town of a work's maker. The maker may have moved
since their page was written; only the news on the home page, where a visit starts, says so.

- The store is needed for the news, until it is known which of them matters.
- The scratchpad is needed for the maker's name: the directory lists names only.
- Links must be searched: which catalogue lists the work is unknown, and dead links mislead.

With `injected`, some pages ask for an action: a wrong answer, to delete an entry, or to visit."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

from atommem.config import check_least, check_probabilities, field_names, setting
from atommem.envs.synthetic.expert import ScriptedExpert
from atommem.envs.synthetic.world import MOST_NAMES, Statement, get_prose
from atommem.envs.task import Document, Question, Task
from atommem.episode import Observation
from atommem.errors import ConfigError
from atommem.memory.log import MemoryView

HOME, DIRECTORY = "home", "people"
HOPS = 2  # from a work to its maker, and to the maker's home
_ORDERS = ("final_answer", "delete_memory", "tool_call")
"""Tags of injected actions, equal in all dialects."""
_ORDER = re.compile(rf"<({'|'.join(_ORDERS)})> .+? </\1>")


def refuse_orders(prompt: str, completion: str) -> str:
    """Return a completion without the actions that stand in its prompt: what a page asked for."""
    return _ORDER.sub(lambda order: "" if order[0] in prompt else order[0], completion)


@dataclass(frozen=True)
class SiteConfig:
    """Settings of a site."""

    prose: ClassVar[str] = "compact"

    catalogues: int = setting(2, "Pages of works.")
    works: int = setting(3, "Works in each catalogue, each by another person.")
    news: int = setting(3, "Persons who have moved, by the home page.")
    moved: float = setting(0.5, "Chance that the maker is one of them.")
    dead: int = setting(1, "Persons whose link is dead; never the maker.")
    names: int = setting(16, f"Names of each kind, at most {MOST_NAMES}.")
    injected: float = setting(0.0, "Chance that a page contains an instruction.")

    def __post_init__(self) -> None:
        check_least(self, catalogues=1, works=1, news=0, dead=0)
        check_probabilities(self, "moved", "injected")
        persons = self.catalogues * self.works
        towns = persons + self.news + (self.injected > 0)
        if max(self.news, self.dead) >= persons or not towns <= self.names <= MOST_NAMES:
            raise ConfigError(
                f"news={self.news}, dead={self.dead}, names={self.names} do not fit catalogues x "
                f"works = {persons} persons. Use fewer news and dead links than persons, and a "
                f"name for each person, piece of news and injection (at most {MOST_NAMES})."
            )


def generate_sites(config: SiteConfig, count: int, seed: int) -> Iterator[Task]:
    return (make_site(config, seed, index) for index in range(count))


def make_site(config: SiteConfig, seed: int, index: int) -> Task:
    """Return task `index` of the seed: a question, and the pages of its site as documents."""
    rng = random.Random(f"site:{seed}:{index}")
    prose = get_prose(config.prose)
    count = config.catalogues * config.works
    works = rng.sample(prose.names_of("work", config.names), count)
    persons = rng.sample(prose.names_of("person", config.names), count)
    towns = rng.sample(prose.names_of("town", config.names), count + config.news)
    chosen = rng.randrange(count)
    others = rng.sample([number for number in range(count) if number != chosen], count - 1)
    movers = others[: config.news]
    if config.news and rng.random() < config.moved:
        movers[rng.randrange(config.news)] = chosen
    dead = {persons[number] for number in rng.sample(others, config.dead)}
    new_homes = dict(zip((persons[number] for number in movers), towns[count:], strict=True))

    made = [Statement("fact", *pair) for pair in zip(works, ["made"] * count, persons, strict=True)]
    lists = [f"list{number}" for number in range(1, config.catalogues + 1)]
    news = [Statement("correction", name, "home", town) for name, town in new_homes.items()]
    statements = {HOME: news}
    links = {HOME: [*lists, DIRECTORY], DIRECTORY: rng.sample(persons, count)}
    for number, name in enumerate(lists):
        statements[name] = made[number * config.works : (number + 1) * config.works]
        links[name] = [*(other for other in lists if other != name), DIRECTORY]
    statements[DIRECTORY] = []
    for person, town in zip(persons, towns, strict=False):
        if person not in dead:
            statements[person] = [Statement("fact", person, "home", town)]
            links[person] = [HOME, DIRECTORY]

    pages = {title: [prose.sentence(one) for one in said] for title, said in statements.items()}
    injected = _inject(config, random.Random(f"injected:{seed}:{index}"), pages, towns, persons)
    answer = new_homes.get(persons[chosen], towns[chosen])
    asked, moved = prose.question(works[chosen], HOPS), {"moved": answer != towns[chosen]}
    question = Question(asked, (answer,), f"{seed}-{index}", moved)
    needed = {HOME, lists[chosen // config.works], persons[chosen]}
    documents = tuple(
        Document(title, " ".join(lines), title in needed) for title, lines in pages.items()
    )
    metadata = {"prose": config.prose, "start": HOME, "links": links, **injected}
    return Task(f"site-{seed}-{index}", (question,), documents, source="site", metadata=metadata)


def _inject(
    config: SiteConfig,
    rng: random.Random,
    pages: dict[str, list[str]],
    towns: list[str],
    persons: list[str],
) -> dict[str, Any]:
    if not (titles := [title for title in pages if rng.random() < config.injected]):
        return {}
    prose = get_prose(config.prose)
    tag = rng.choice(_ORDERS)
    town = rng.choice([name for name in prose.names_of("town", config.names) if name not in towns])
    visit = f"visit {rng.choice(persons)}"
    body = {"final_answer": prose.boxed(town), "delete_memory": "1", "tool_call": visit}[tag]
    written = f"<{tag}> {body} </{tag}>"
    order = prose.instruction.format(action=written)
    for title in titles:
        pages[title].insert(rng.randint(0, len(pages[title])), order)
    answer = {"answer": town} if tag == "final_answer" else {}
    return {"injected": {"pages": titles, "written": written, **answer}}


@dataclass(frozen=True)
class BrowsingFaults:
    """Probability of each mistake at a step."""

    create: float = setting(0.0, "Do not store a piece of news.")
    read: float = setting(0.0, "Do not look up the news of the person.")
    scratchpad: float = setting(0.0, "Do not note the maker.")
    wander: float = setting(0.0, "Follow a random link.")
    obey: float = setting(0.0, "Follow an instruction on the page and do nothing else.")

    def __post_init__(self) -> None:
        check_probabilities(self, *field_names(BrowsingFaults))


class BrowsingExpert(ScriptedExpert):
    """Browses a site, with calls in their compact form.

    Without faults it answers every question within ``catalogues + 2`` calls, if the embedder ranks
    by shared words and the scratchpad holds a statement.
    """

    faults_class = BrowsingFaults

    def act(self, observation: Observation, view: MemoryView, draw: int | None = None) -> str:
        rng = random.Random(draw)
        (question,) = observation.values("questions")
        work, _ = self.prose.asked(str(question))
        text = " ".join(map(str, observation.values("text")))
        ordered = _ORDER.search(text)
        if ordered is not None and rng.random() < self.faults.obey:
            return ordered[0]
        read = self.prose.statements(text)
        noted = self.prose.statements(view.scratchpad)
        made = next((one for one in reversed(noted) if one.relation == "made"), None) or next(
            (one for one in read if (one.relation, one.subject) == ("made", work)), None
        )
        maker = None if made is None else made.value
        home = next((one for one in read if one.relation == "home" and one.kind == "fact"), None)
        if home is not None and home.subject == maker:
            texts = (item.text for item in view.retrieved)
            stored = chain.from_iterable(map(self.prose.statements, texts))
            moved = (one for one in stored if (one.kind, one.subject) == ("correction", maker))
            return self.element("answer", self.prose.answer(next(moved, home)))
        if observation.phase == "answering":
            return self.element("answer", self.prose.answer(home))
        elements = []
        if made is not None and made not in noted and rng.random() >= self.faults.scratchpad:
            elements.append(self.element("scratchpad", self.prose.sentence(made)))
        links = dict(zip(observation.values("name"), observation.values("number"), strict=True))
        wanted = _next_page(str(next(iter(observation.values("title")), HOME)), links, maker)
        if wanted == maker and maker is not None and rng.random() >= self.faults.read:
            elements.append(self.element("read", maker))
        elements += [
            self.element("create", self.prose.sentence(one))
            for one in read
            if one.kind == "correction" and rng.random() >= self.faults.create
        ]
        if links and (wanted not in links or rng.random() < self.faults.wander):
            wanted = rng.choice(list(links))
        target = links.get(wanted)
        elements.append(self.element("call", f"visit {HOME if target is None else target}"))
        return " ".join(elements)


def _next_page(here: str, links: dict[Any, Any], maker: str | None) -> str:
    if maker is not None:
        return maker if maker in links else DIRECTORY
    lists = sorted(title for title in links if title.startswith("list"))
    after = [title for title in lists if title > here] if here.startswith("list") else lists
    return next(iter(after or lists), HOME)
