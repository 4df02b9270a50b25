"""A seeded generator of small multi-hop worlds in which each memory operation is needed.

Every task is a stream of short documents about guilds, prizes, works, persons and towns, and asks
for the town at the end of a chain of facts. The settings that make each operation necessary:

- create and read: ``early``, the chance that a fact comes before the one that makes it relevant;
- update: ``corrections``, the chance that a person moves later;
- delete: ``capacity``, fewer entries than there are facts; withdrawals name what may go;
- scratchpad: ``opening``, the chance that the first link of a chain stands only at the beginning
  and so is needed at every later step; and ``hops``, as the known end of the chain is, too.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from random import Random
from typing import Literal

from atommem.config import check_choice, check_least, check_probabilities, check_ranges, setting
from atommem.envs.task import Document, Question, Task
from atommem.errors import ConfigError
from atommem.files import load_beside

RELATIONS = ("gave", "won", "made", "home")
"""A chain of four: a guild gave a prize, a work won it, a person made it and lives in a town."""

StatementKind = Literal["fact", "correction", "withdrawal"]

_TEXTS = load_beside(__file__, "world.yaml")
_Parts = Mapping[str, tuple[list[str], list[str]]]
_PARTS: _Parts = _TEXTS["names"]
KINDS = tuple(_PARTS)
LINKS = tuple(zip(RELATIONS, KINDS, KINDS[1:], strict=False))
"""Each relation with the kinds of its subject and of its value."""
MOST_NAMES = min(len(heads) * len(tails) for heads, tails in _PARTS.values())
PROSES = tuple(_TEXTS["prose"])


@dataclass(frozen=True, slots=True)
class Statement:
    """The content of one sentence.

    A fact is ``relation(subject) = value``; a correction replaces an earlier value; a withdrawal
    says that no question depends on the subject (it has neither relation nor value).
    """

    kind: StatementKind
    subject: str
    relation: str = ""
    value: str = ""


@dataclass(frozen=True, eq=False)
class Prose:
    """Sentences for statements, and statements from sentences (see ``world.yaml``).

    In `compact` the key stands directly before the value, and a name is one word, for policies
    small enough to be trained from scratch.
    """

    name: str
    facts: Mapping[str, Sequence[str]]  # wordings by relation; the first is used in notes
    correction: str
    withdrawal: str
    questions: Mapping[int, str]  # wording by number of hops
    filler: Sequence[str]  # sentences without a statement
    unknown: str  # the boxed answer if it is not known
    box: str  # an answer, ``{value}`` in its box
    instruction: str  # an order to write an ``{action}``
    name_pattern: str = r"[A-Z][a-z]+"  # a regular expression
    names: _Parts = field(default_factory=lambda: _PARTS)  # beginnings and ends, by kind
    space: str = " "

    def names_of(self, kind: str, count: int) -> list[str]:
        """Return the first `count` names of a kind, at most `MOST_NAMES`, with mixed parts."""
        heads, tails = self.names[kind]
        every = [head + tail for head in heads for tail in tails]
        Random(kind).shuffle(every)
        return every[:count]

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], StatementKind, str]]:
        return [
            *(
                (self._pattern(wording), "fact", relation)
                for relation, wordings in self.facts.items()
                for wording in wordings
            ),
            (self._pattern(self.correction), "correction", "home"),
            (self._pattern(self.withdrawal), "withdrawal", ""),
        ]

    def sentence(self, statement: Statement, rng: Random | None = None) -> str:
        """Return the sentence for `statement`, in the first wording or in one that `rng` draws."""
        wording = self.correction if statement.kind == "correction" else self.withdrawal
        if statement.kind == "fact":
            wordings = self.facts[statement.relation]
            wording = wordings[0] if rng is None else rng.choice(wordings)
        return wording.format(s=statement.subject, v=statement.value)

    def statements(self, text: str) -> list[Statement]:
        found = [
            (match.start(), Statement(kind, match["s"], relation, match.groupdict().get("v", "")))
            for pattern, kind, relation in self._patterns
            for match in pattern.finditer(text)
        ]
        return [statement for _, statement in sorted(found, key=itemgetter(0))]

    def question(self, name: str, hops: int) -> str:
        return self.questions[hops].format(s=name)

    def asked(self, question: str) -> tuple[str, int]:
        """Return the name and the number of hops that `question` asks about."""
        for hops, wording in self.questions.items():
            if match := self._pattern(wording).fullmatch(question.strip()):
                return match["s"], hops
        raise ConfigError(f"{question!r} is not a question of the {self.name} prose.")

    def answer(self, statement: Statement | None) -> str:
        """Return the body of an answer: its fact and boxed value, or the box of an unknown."""
        if statement is None:
            return self.boxed(self.unknown)
        return f"{self.sentence(statement)} {self.boxed(statement.value)}"

    def boxed(self, value: str) -> str:
        return self.box.format(value=value)

    def _pattern(self, wording: str) -> re.Pattern[str]:
        escaped = re.escape(wording)
        for letter in "sv":
            escaped = escaped.replace(rf"\{{{letter}\}}", f"(?P<{letter}>{self.name_pattern})")
        ends = r"(?!\S)" if self.space else ""
        return re.compile(rf"(?<![^\s\u3002]){escaped}{ends}")


_PROSES = {name: Prose(name=name, **texts) for name, texts in _TEXTS["prose"].items()}


def get_prose(name: str) -> Prose:
    check_choice("prose", name, PROSES)
    return _PROSES[name]


_THIRDS = {"early": 0.0, "late": 2 / 3}  # where the evidence begins, as a share of the stream


@dataclass(frozen=True)
class WorldConfig:
    """Settings of the synthetic world. Rates are probabilities; pairs are inclusive ranges."""

    prose: str = setting(
        "plain", "plain (English), german, chinese, japanese, arabic, or compact (few words)."
    )
    hops: tuple[int, int] = setting((2, 2), "Links from what is asked to the answer, 1 to 4.")
    questions: tuple[int, int] = setting((1, 1), "Questions per task, each with its chain.")
    distractors: int = setting(4, "Chains that no question asks about.")
    early: float = setting(0.5, "Chance that a fact comes before the one that makes it matter.")
    opening: float = setting(0.0, "Chance that the first link of a chain stands at the beginning.")
    corrections: float = setting(0.3, "Chance that a home is corrected later.")
    errata: bool = setting(False, "Corrections stand at the end, not anywhere after their fact.")
    evidence: str = setting(
        "anywhere",
        "Where the asked facts and their corrections stand: anywhere, early (in the first third), "
        "late (in the last), or mixed (either, drawn for each task).",
    )
    capacity: int | None = setting(None, "Most facts that matter at a time; others are withdrawn.")
    facts_per_document: int = setting(2, "Statements in one document.")
    filler: int = setting(0, "Sentences per document that say nothing.")
    names: int = setting(MOST_NAMES, f"Names in use of each kind, at most {MOST_NAMES}.")

    def __post_init__(self) -> None:
        check_choice("prose", self.prose, PROSES)
        check_choice("evidence", self.evidence, ("anywhere", *_THIRDS, "mixed"))
        check_ranges(self, hops=len(RELATIONS), questions=MOST_NAMES)
        check_probabilities(self, "early", "opening", "corrections")
        check_least(self, distractors=0, facts_per_document=1, filler=0)
        needed = 2 * (self.questions[1] + self.distractors)
        if not needed <= self.names <= MOST_NAMES:
            raise ConfigError(
                f"names={self.names}: {self.questions[1]} questions and {self.distractors} "
                f"distractors need {needed} towns, and there are {MOST_NAMES} names of each kind."
            )
        lasting = self.questions[1] * self.hops[1]
        if self.capacity is not None and self.capacity < lasting:
            raise ConfigError(
                f"capacity={self.capacity}: chains of the questions hold up to {lasting} facts. "
                f"Give at least {lasting}."
            )


@dataclass
class _Chain:
    """A chain of facts in the order of its links, the time of each, and its correction."""

    facts: list[Statement]
    times: list[float]
    asked: bool
    correction: Statement | None = None
    corrected_at: float = 0.0


def generate(config: WorldConfig, count: int, seed: int) -> Iterator[Task]:
    """Yield `count` tasks. Task i depends on `config`, `seed` and i only."""
    return (make_task(config, seed, index) for index in range(count))


def task_name(seed: int, index: int) -> str:
    return f"synthetic-{seed}-{index}"


def make_task(config: WorldConfig, seed: int, index: int) -> Task:
    rng = Random(f"{seed}:{index}")
    prose = get_prose(config.prose)
    chains = _chains(config, prose, rng)
    asked = [chain for chain in chains if chain.asked]
    needed = {fact for chain in asked for fact in (*chain.facts, chain.correction)}
    documents = []
    for number, statements in enumerate(_documents(config, chains, rng), start=1):
        sentences = [prose.sentence(statement, rng) for statement in statements]
        for _ in range(config.filler):
            sentences.insert(rng.randint(0, len(sentences)), rng.choice(prose.filler))
        title = f"Notice {number}" if config.prose == "plain" else ""
        gold = not needed.isdisjoint(statements)
        documents.append(Document(title, prose.space.join(sentences), gold))
    questions = []
    for number, chain in enumerate(asked):
        text = prose.question(chain.facts[0].subject, len(chain.facts))
        answers = ((chain.correction or chain.facts[-1]).value,)
        details = {"hops": len(chain.facts), "corrected": chain.correction is not None}
        questions.append(Question(text, answers, f"{seed}-{index}-{number}", details))
    name, metadata = task_name(seed, index), {"prose": config.prose}
    return Task(name, tuple(questions), tuple(documents), source="synthetic", metadata=metadata)


def _chains(config: WorldConfig, prose: Prose, rng: Random) -> list[_Chain]:
    asked = rng.randint(*config.questions)
    count = asked + config.distractors
    # Twice as many towns: a person may move, and no two homes of a task are the same.
    drawn = {
        kind: rng.sample(prose.names_of(kind, config.names), 2 * count if kind == "town" else count)
        for kind in KINDS
    }
    chains = []
    for number in range(count):
        hops = rng.randint(*config.hops)
        facts = [
            Statement("fact", drawn[subject][number], relation, drawn[value][number])
            for relation, subject, value in LINKS[-hops:]
        ]
        opens = rng.random() < config.opening
        chain = _Chain(facts, _times(hops, opens, config.early, rng), number < asked)
        if rng.random() < config.corrections:
            town = drawn["town"][count + number]
            chain.correction = Statement("correction", facts[-1].subject, "home", town)
            chain.corrected_at = 1.0 if config.errata else rng.uniform(chain.times[-1], 1.0)
        chains.append(chain)
    if config.evidence != "anywhere":
        place = rng.choice([*_THIRDS]) if config.evidence == "mixed" else config.evidence
        for chain in chains[:asked]:
            chain.times = [_THIRDS[place] + time / 3 for time in chain.times]
            chain.corrected_at = _THIRDS[place] + chain.corrected_at / 3
    return chains


def _times(hops: int, opens: bool, early: float, rng: Random) -> list[float]:
    """Draw the time of each link in [0, 1): every link may come before the one that leads to it."""
    order = [0]
    for link in range(1, hops):
        place, first = order.index(link - 1), int(opens)  # a link that opens the stream stays first
        before = rng.random() < early and place >= first
        span = (first, place) if before else (place + 1, len(order))
        order.insert(rng.randint(*span), link)
    by_link = dict(zip(order, sorted(rng.random() for _ in order), strict=True))
    if opens:
        by_link[0] = 0.0
    return [by_link[link] for link in range(hops)]


def _documents(config: WorldConfig, chains: list[_Chain], rng: Random) -> list[list[Statement]]:
    """Return the statements of every document, with withdrawals if there is a capacity."""
    timed = [
        (time, rng.random(), fact)
        for chain in chains
        for time, fact in zip(chain.times, chain.facts, strict=True)
    ]
    timed += [(one.corrected_at, rng.random(), one.correction) for one in chains if one.correction]
    stream = [statement for *_, statement in sorted(timed, key=lambda item: item[:2])]
    asked = [chain for chain in chains if chain.asked]
    lasting = {fact.subject for chain in asked for fact in chain.facts}
    first_link = min(RELATIONS.index(chain.facts[0].relation) for chain in asked)
    documents: list[list[Statement]] = [[]]
    live: list[str] = []
    withdrawn: set[str] = set()
    for statement in stream:
        subject, is_fact = statement.subject, statement.kind == "fact"
        if subject in withdrawn:
            continue
        # The first link of a chain that no question asks about never seems to matter.
        if is_fact and (subject in lasting or RELATIONS.index(statement.relation) > first_link):
            if config.capacity is not None and len(live) >= config.capacity:
                gone = [name for name in live if name not in lasting]
                if gone:  # else the chains of all questions are complete
                    gone = rng.sample(gone, min(len(gone), config.facts_per_document))
                    _start_document(documents)
                    documents[-1].extend(Statement("withdrawal", name) for name in gone)
                    documents.append([])
                    withdrawn.update(gone)
                    live = [name for name in live if name not in gone]
            live.append(subject)
        current = documents[-1]
        begins_errata = config.errata and not is_fact and any(o.kind == "fact" for o in current)
        is_full = len(current) >= config.facts_per_document
        if is_full or begins_errata or any(other.subject == subject for other in current):
            _start_document(documents)
        documents[-1].append(statement)
    return documents


def _start_document(documents: list[list[Statement]]) -> None:
    if documents[-1]:
        documents.append([])
