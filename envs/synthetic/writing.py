"""The texts of told facts: names, wordings and forms of text in plain English (``told.yaml``)."""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import md5
from typing import Any, ClassVar

from atommem.envs.synthetic.expert import Note
from atommem.envs.task import Document, Question, Task
from atommem.files import load_beside

SPLITS = ("train", "test")
TEXTS: dict[str, Any] = load_beside(__file__, "told.yaml")
GENDERS = {"person": ("she", "he"), "woman": ("she",), "man": ("he",)}
_WITH_ARTICLE = ("thing", "event", "building")
_MONTHS = TEXTS["months"].split()
_UNSEEN_FORMS = 2
_FILLER, _ONE_FORM = 0.3, 0.6


@dataclass(frozen=True)
class Name:
    text: str
    parts: tuple[str, ...] = ()
    pronoun: str = "it"


@dataclass(frozen=True)
class Saying:
    """One thing that a text says: a ``fact``, its ``correction`` or ``retraction``, or ``again``:
    the fact after a retraction. `old` is the value that a correction replaces."""

    kind: str
    relation: str
    subject: Name
    value: Name
    old: Name | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.relation, self.subject.text


class Writer:
    """Writes one text. Names and values differ within it; splits share no name."""

    source: ClassVar[str]

    @classmethod
    def generate(cls, config: Any, count: int, seed: int, split: str) -> Iterator[Task]:
        """Yield `count` tasks. Task i depends on `config`, `split`, `seed` and i only."""
        for index in range(count):
            yield cls(f"{cls.source}-{split}-{seed}-{index:05d}", split).task(config)

    def task(self, config: Any) -> Task:
        raise NotImplementedError

    def __init__(self, task_id: str, split: str) -> None:
        self._id, self._split = task_id, split
        self._rng = random.Random(task_id)
        self._used: set[str] = set()
        self._unseen = False

    def _task(
        self,
        asked: Sequence[tuple[Question, Sequence[int]]],
        texts: Sequence[str],
        query: str,
        notes: Iterable[Note],
    ) -> Task:
        gold = {place for _, places in asked for place in places}
        questions = tuple(question.with_documents(places) for question, places in asked)
        documents = tuple(Document("", text, n in gold) for n, text in enumerate(texts))
        metadata = {"split": self._split, "query": query, "notes": [*map(asdict, notes)]}
        return Task(self._id, questions, documents, source=self.source, metadata=metadata)

    def _texts(self, paragraphs: list[list[Saying]], write: Callable[[Saying], str]) -> list[str]:
        rng = self._rng
        forms = list(TEXTS["forms"].values())
        if self._split == "train":
            forms = forms[:-_UNSEEN_FORMS]
        form, one_form = rng.choice(forms), rng.random() < _ONE_FORM
        texts = []
        for number, said in enumerate(paragraphs):
            if not one_form:
                form = rng.choice(forms)
            begins = form["next"] if one_form and number else form["first"]
            parts = [self._filled(self._wording(begins), number)]
            parts += map(write, said)
            if not said or rng.random() < _FILLER:
                parts.insert(rng.randint(1, len(parts)), self._wording(TEXTS["filler"]))
            if one_form and number + 1 == len(paragraphs) and rng.random() < 0.5:
                parts.append(self._filled(self._wording(form["last"]), number))
            texts.append(" ".join(filter(None, parts)))
        return texts

    def _wording(self, text: str) -> str:
        return self._rng.choice(_wordings(text))

    def _wording_of_split(self, text: str, *, matters: bool = True) -> str:
        """Draw a wording; the last one stands in test splits alone, which have it more often."""
        wordings = _wordings(text)
        if self._split == "train":
            return self._rng.choice(wordings[:-1])
        wording = self._rng.choice((*wordings, *wordings[-1:] * (len(wordings) // 3)))
        self._unseen |= matters and wording == wordings[-1]
        return wording

    def _filled(self, text: str, number: int) -> str:
        values = {"d": "date", "t": "time", "w": "weekday"}

        def fill(match: re.Match[str]) -> str:
            if match[1] == "n":
                return str(number + 1)
            if match[1] == "x":
                return self._rng.choice(_names(self._rng.choice(("she", "he")), self._split)[0])
            return self._drawn(values[match[1]]).text

        return re.sub(r"\{(\w)\}", fill, text)

    def _name(self, kind: str, like: Name | None = None) -> Name:
        for _ in range(100):
            name = self._drawn(kind, like)
            if name.text not in self._used:
                break
        self._used.add(name.text)
        return name

    def _drawn(self, kind: str, like: Name | None = None) -> Name:
        rng = self._rng
        if kind in TEXTS["values"]:
            return Name(rng.choice(_wordings(TEXTS["values"][kind])))
        if kind in _NUMBERS:
            return Name(_NUMBERS[kind](rng))
        if kind in GENDERS:
            pronoun = like.pronoun if like else rng.choice(GENDERS[kind])
            lists = tuple(_names(name, self._split)[0] for name in (pronoun, "surname"))
        else:
            pronoun, lists = "it", _names(kind, self._split)
        parts = [rng.choice(part) for part in lists]
        if like and like.parts:
            shared = rng.randrange(len(parts))
            parts[shared] = like.parts[shared]
        text = (" " if kind in GENDERS else "").join(parts)
        return Name(f"the {text}" if kind in _WITH_ARTICLE else text, tuple(parts), pronoun)


def written(wording: str, subject: str, value: Name, contrast: Name | None = None) -> str:
    """Return a sentence of a wording, where a phrase in ``<>`` may deny another value first."""
    before, phrase, after = re.split("[<>]", re.sub(r"[][]", "", wording))
    said = phrase.format(v=value.text)
    if contrast is not None:
        said = f"not {phrase.format(v=contrast.text)} but {said}"
    text = f"{before.format(s=subject)}{said}{after.format(s=subject)}"
    return text[0].upper() + text[1:]


def _hour(rng: random.Random) -> str:
    hour = rng.randint(1, 12)
    return rng.choice((f"{hour}.{rng.choice(('15', '30', '45'))}", f"{hour} o'clock"))


_NUMBERS = {
    "number": lambda rng: str(rng.randint(18, 99)),
    "year": lambda rng: str(rng.randint(1750, 2015)),
    "money": lambda rng: f"{rng.randint(3, 250)} {rng.choice(('pounds', 'dollars', 'euros'))}",
    "weight": lambda rng: f"{rng.randint(2, 200)} {rng.choice(('kilos', 'pounds', 'grams'))}",
    "date": lambda rng: f"{rng.randint(1, 28)} {rng.choice(_MONTHS)}",
    "time": _hour,
}


@cache
def _wordings(text: str) -> tuple[str, ...]:
    """Return the items of a text in ``told.yaml``: separated by ``|``, or else its words."""
    return tuple(part.strip() for part in text.split("|")) if "|" in text else tuple(text.split())


@cache
def _names(kind: str, split: str) -> tuple[tuple[str, ...], ...]:
    """Return the lists of parts of a kind of names, as far as they belong to the split."""
    lists = TEXTS["names"][kind]
    found = []
    for text in [lists] if isinstance(lists, str) else lists:
        space = " " if "|" in text else ""
        in_test = {part: md5(part.encode()).digest()[0] % 4 == 0 for part in _wordings(text)}
        found.append(tuple(space + part for part in in_test if in_test[part] == (split == "test")))
    return tuple(found)
