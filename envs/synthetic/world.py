"""A seeded generator of small multi-hop worlds in which each memory operation earns its keep.

Every task is a stream of short documents about guilds, prizes, works, persons and towns, and asks for
the town at the end of a chain of facts. What each knob makes necessary:

- create and read: ``early``, the chance that a fact comes before the one that shows that it matters;
- update: ``corrections``, the chance that a person moves after their home was told;
- delete: ``capacity``, fewer entries than there are facts; what may go is told in time;
- scratchpad: ``opening``, the chance that the first link of a chain stands only at the very beginning
  and so is needed at every later step; and ``hops``, as the end of the chain found so far is.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from atommem.config import check_choice, check_least, check_probabilities, setting
from atommem.envs.synthetic.names import KINDS, MOST_NAMES, names_of
from atommem.envs.synthetic.prose import PROSES, RELATIONS, Prose, Statement, get_prose
from atommem.envs.task import Document, Question, Task
from atommem.errors import ConfigError

MOST_HOPS = len(RELATIONS)


@dataclass(frozen=True)
class WorldConfig:
    """The knobs of the synthetic world. Rates are probabilities; pairs are inclusive ranges."""

    prose: str = setting("plain", "plain (English) or compact (few words, for tiny policies).")
    hops: tuple[int, int] = setting((2, 2), "Links from what is asked to the answer, 1 to 4.")
    questions: tuple[int, int] = setting((1, 1), "Questions per task, each with its chain.")
    distractors: int = setting(4, "Chains that no question asks about.")
    early: float = setting(
        0.5, "Chance that a fact comes before the one that shows that it matters."
    )
    opening: float = setting(
        0.0, "Chance that the first link of a chain stands at the very beginning."
    )
    corrections: float = setting(0.3, "Chance that a home is corrected later.")
    errata: bool = setting(
        False, "Corrections stand together at the end instead of anywhere after their fact."
    )
    capacity: int | None = setting(
        None, "Never more facts than this may matter at a time; others are withdrawn before."
    )
    facts_per_document: int = setting(2, "Statements in one document.")
    filler: int = setting(0, "Sentences per document that say nothing.")
    names: int = setting(MOST_NAMES, f"Names in use of each kind, at most {MOST_NAMES}.")

    def __post_init__(self) -> None:
        check_choice("prose", self.prose, PROSES)
        for name, (low, high), most in (
            ("hops", self.hops, MOST_HOPS),
            ("questions", self.questions, MOST_NAMES),
        ):
            if not 1 <= low <= high <= most:
                raise ConfigError(f"{name} is {low}-{high}: give a range within 1-{most}.")
        check_probabilities(self, "early", "opening", "corrections")
        check_least(self, distractors=0, facts_per_document=1, filler=0)
        needed = 2 * (self.questions[1] + self.distractors)
        if not needed <= self.names <= MOST_NAMES:
            raise ConfigError(
                f"names is {self.names}: {self.questions[1]} questions and {self.distractors} distractors "
                f"need {needed} towns, and there are {MOST_NAMES} names of each kind."
            )
        lasting = self.questions[1] * self.hops[1]
        if self.capacity is not None and self.capacity < lasting:
            raise ConfigError(
                f"capacity is {self.capacity}: the questions' own chains hold up to {lasting} facts; "
                f"give at least {lasting}."
            )


@dataclass
class _Chain:
    """One chain of facts in the order of its links, the time at which each is told, and its correction."""

    facts: list[Statement]
    times: list[float]
    asked: bool
    opens: bool
    correction: Statement | None = None
    corrected_at: float = 0.0

    @property
    def town(self) -> str:
        return (self.correction or self.facts[-1]).value


def generate(config: WorldConfig, count: int, seed: int) -> Iterator[Task]:
    """`count` tasks. Task i depends on `config`, `seed` and i only, so that a longer run begins with a shorter one."""
    for index in range(count):
        yield make_task(config, seed, index)


def task_name(seed: int, index: int) -> str:
    """The id of the task number `index` of the seed."""
    return f"synthetic-{seed}-{index}"


def make_task(config: WorldConfig, seed: int, index: int) -> Task:
    """The task number `index` of the seed."""
    rng = random.Random(f"{seed}:{index}")
    prose = get_prose(config.prose)
    chains = _chains(config, rng)
    documents = [
        (_text(prose, statements, config, rng), statements)
        for statements in _documents(config, chains, rng)
    ]
    asked = [chain for chain in chains if chain.asked]
    needed = {
        fact for chain in asked for fact in [*chain.facts, chain.correction] if fact is not None
    }
    return Task(
        id=task_name(seed, index),
        questions=tuple(
            _question(prose, chain, f"{seed}-{index}-{number}")
            for number, chain in enumerate(asked)
        ),
        documents=tuple(
            Document(
                title=f"Notice {number}" if config.prose == "plain" else "",
                text=text,
                gold=any(statement in needed for statement in statements),
            )
            for number, (text, statements) in enumerate(documents, start=1)
        ),
        source="synthetic",
        metadata={"prose": config.prose},
    )


def _question(prose: Prose, chain: _Chain, identifier: str) -> Question:
    hops = len(chain.facts)
    return Question(
        text=prose.question(chain.facts[0].subject, hops),
        answers=(chain.town,),
        id=identifier,
        metadata={"hops": hops, "corrected": chain.correction is not None},
    )


def _text(
    prose: Prose, statements: list[Statement], config: WorldConfig, rng: random.Random
) -> str:
    sentences = [prose.sentence(statement, rng) for statement in statements]
    for _ in range(config.filler):
        sentences.insert(rng.randint(0, len(sentences)), rng.choice(prose.filler))
    return " ".join(sentences)


def _chains(config: WorldConfig, rng: random.Random) -> list[_Chain]:
    asked = rng.randint(*config.questions)
    count = asked + config.distractors
    # Towns stand twice: a person may move, and no two homes of a task are the same.
    drawn = {
        kind: rng.sample(names_of(kind, config.names), 2 * count if kind == "town" else count)
        for kind in KINDS
    }
    chains = []
    for number in range(count):
        hops = rng.randint(*config.hops)
        links = list(zip(RELATIONS, KINDS, KINDS[1:], strict=False))[-hops:]
        facts = [
            Statement("fact", drawn[subject][number], relation, drawn[value][number])
            for relation, subject, value in links
        ]
        opens = rng.random() < config.opening
        chain = _Chain(facts, _times(hops, opens, config.early, rng), number < asked, opens)
        if rng.random() < config.corrections:
            chain.correction = Statement(
                "correction", facts[-1].subject, "home", drawn["town"][count + number]
            )
            told = chain.times[-1]
            chain.corrected_at = 1.0 if config.errata else rng.uniform(told, 1.0)
        chains.append(chain)
    return chains


def _times(hops: int, opens: bool, early: float, rng: random.Random) -> list[float]:
    """When each link is told, in [0, 1): every link may come before the one that leads to it."""
    order = [0]
    for link in range(1, hops):
        place = order.index(link - 1)
        # A first link that opens the stream stays first.
        first = 1 if opens else 0
        before = rng.random() < early and place >= first
        order.insert(
            rng.randint(first, place) if before else rng.randint(place + 1, len(order)), link
        )
    times = sorted(rng.random() for _ in order)
    told = [0.0] * hops
    for time, link in zip(times, order, strict=True):
        told[link] = time
    if opens:
        told[0] = 0.0
    return told


def _documents(
    config: WorldConfig, chains: list[_Chain], rng: random.Random
) -> list[list[Statement]]:
    """The statements of every document, in stream order, with withdrawals where the capacity asks for them."""
    timed = [
        (time, rng.random(), fact)
        for chain in chains
        for time, fact in zip(chain.times, chain.facts, strict=True)
    ]
    timed += [
        (chain.corrected_at, rng.random(), chain.correction) for chain in chains if chain.correction
    ]
    stream = [statement for *_, statement in sorted(timed, key=lambda item: item[:2])]
    lasting = {fact.subject for chain in chains if chain.asked for fact in chain.facts}
    first_link = min(RELATIONS.index(chain.facts[0].relation) for chain in chains if chain.asked)
    documents: list[list[Statement]] = [[]]
    live: list[str] = []
    struck: set[str] = set()
    for statement in stream:
        current = documents[-1]
        if statement.subject in struck:
            continue
        # The first link of a chain that no question asks about never looks as if it mattered: it takes no place.
        if statement.kind == "fact" and (
            statement.subject in lasting or RELATIONS.index(statement.relation) > first_link
        ):
            if config.capacity is not None and len(live) >= config.capacity:
                current = _withdraw(config, documents, live, lasting, struck, rng)
            live.append(statement.subject)
        told_here = any(other.subject == statement.subject for other in current)
        begins_errata = (
            config.errata
            and statement.kind == "correction"
            and any(o.kind == "fact" for o in current)
        )
        if current and (len(current) >= config.facts_per_document or told_here or begins_errata):
            current = []
            documents.append(current)
        current.append(statement)
    return documents


def _withdraw(
    config: WorldConfig,
    documents: list[list[Statement]],
    live: list[str],
    lasting: set[str],
    struck: set[str],
    rng: random.Random,
) -> list[Statement]:
    """Add a document that withdraws some of the facts that do not matter; returns the fresh one after it."""
    candidates = [subject for subject in live if subject not in lasting]
    if not candidates:  # all that is asked has been told: what comes now does not matter
        return documents[-1]
    gone = rng.sample(candidates, min(len(candidates), config.facts_per_document))
    notice = [Statement("withdrawal", subject) for subject in gone]
    if documents[-1]:
        documents.append([])
    documents[-1].extend(notice)
    documents.append([])
    struck.update(gone)
    live[:] = [subject for subject in live if subject not in gone]
    return documents[-1]
