"""The sentences and names of the synthetic world: statements to text and back, in several proses.

`plain` is natural English, for pretrained models; others are the same in other languages, with
names of their own. `compact` is a few words with the key directly before the value and one word a
name, for policies small enough to be trained from scratch.
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Literal

from atommem.config import check_choice
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
    """Sentences for statements, and statements from sentences (see ``world.yaml``)."""

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
        random.Random(kind).shuffle(every)
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

    def sentence(self, statement: Statement, rng: random.Random | None = None) -> str:
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
