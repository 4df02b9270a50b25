"""Told facts: short texts in plain English with one question, and what to note while reading.

A task is a letter, a diary, minutes or another form of text (``told.yaml``). Its question asks for
one fact, or for a fact about the value of another one. Facts are corrected and withdrawn, and stand
among facts about others. Train and test splits share no name; test splits have wordings and forms
that train splits never show.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import md5
from pathlib import Path
from typing import Any

import yaml

from atommem.config import check_choice, check_probabilities, setting
from atommem.envs.synthetic.notes import Note
from atommem.envs.task import Document, Question, Task
from atommem.errors import ConfigError

SOURCE, SPLITS = "told", ("train", "test")
_TEXTS: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("told.yaml").read_text(encoding="utf-8")
)
RELATIONS: dict[str, dict[str, str]] = _TEXTS["relations"]
_GENDERS = {"person": ("she", "he"), "woman": ("she",), "man": ("he",)}
_WITH_ARTICLE = ("thing", "event", "building")
_MONTHS = _TEXTS["months"].split()
_LEFT_OUT = re.compile(r" ?\[[^]]*\](?=[.,])|\[[^]]*\]")
_UNSEEN_FORMS = 2
_PRONOUN, _CONTRAST, _BESIDE, _FILLER, _ONE_FORM = 0.3, 0.15, 0.25, 0.3, 0.6
_MOST_CANDIDATES = 3
"""Facts of the asked kind about others: a reader notes them until it knows who is asked about."""


@dataclass(frozen=True)
class ToldConfig:
    """Settings of told facts."""

    levels: tuple[int, int] = setting(
        (1, 3),
        "Difficulty, drawn in the range: 1 (two paragraphs, one fact), 2 (three or four, with "
        "corrections), 3 (up to six, half of the questions over two facts), 4 (six to twelve, "
        "mostly over two facts).",
    )
    distractors: float = setting(0.7, "Share of the other paragraphs that hold a fact.")
    early: float = setting(0.4, "Chance that the second fact of a question is told first.")

    def __post_init__(self) -> None:
        low, high = self.levels
        if not 1 <= low <= high <= len(_LEVELS):
            raise ConfigError(f"levels={low}-{high}: not a range within 1-4. Give one.")
        check_probabilities(self, "distractors", "early")


_LEVELS = (
    # paragraphs, chance of two hops, chance of a correction
    ((2, 2), 0.0, 0.0),
    ((3, 4), 0.0, 0.35),
    ((4, 6), 0.5, 0.4),
    ((6, 12), 0.8, 0.5),
)


@dataclass(frozen=True)
class _Name:
    text: str
    parts: tuple[str, ...] = ()
    pronoun: str = "it"


@dataclass(frozen=True)
class _Saying:
    """One thing that a text says: a ``fact``, its ``correction`` or ``retraction``, or ``again``:
    the fact after a retraction. `old` is the value that a correction replaces."""

    kind: str
    relation: str
    subject: _Name
    value: _Name
    old: _Name | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.relation, self.subject.text


def generate(config: ToldConfig, count: int, seed: int, split: str) -> Iterator[Task]:
    """Yield `count` tasks. Task i depends on `config`, `split`, `seed` and i only."""
    check_choice("split", split, SPLITS)
    for index in range(count):
        yield _Writer(config, split, f"{seed}-{index:05d}").task()


class _Writer:
    """Writes one task."""

    def __init__(self, config: ToldConfig, split: str, number: str) -> None:
        self._config, self._split = config, split
        self._id = f"told-{split}-{number}"
        self._rng = random.Random(self._id)
        self._level = self._rng.randint(*config.levels)
        self._count, self._two_hops, self._corrections = _LEVELS[self._level - 1]
        self._used: set[str] = set()
        self._unseen = False

    def task(self) -> Task:
        """Return the task."""
        rng = self._rng
        relation = rng.choice(list(RELATIONS))
        links = [name for name in RELATIONS if name != relation and self._leads(name, relation)]
        link = rng.choice(links) if links and rng.random() < self._two_hops else ""
        subject = self._name(RELATIONS[link or relation]["of"])
        needed = self._needed(link, relation, subject, rng.random() < self._corrections)
        paragraphs = self._paragraphs(needed)
        reader = _Reader(link, relation, subject.text)
        texts = self._texts(paragraphs, needed, reader)
        topic = RELATIONS[link]["topic"].format(s=subject.text) if link else subject.text
        ask = self._wording_of_split(RELATIONS[relation]["ask"])
        gold = [n for n, said in enumerate(paragraphs) if not {*needed}.isdisjoint(said)]
        details = {
            "hops": 1 + bool(link),
            "level": self._level,
            "corrected": len(needed) > 1 + bool(link),
            "unseen": self._unseen,
        }
        question = Question(ask.format(s=topic), (reader.answer,), self._id, details)
        return Task(
            id=self._id,
            questions=(question.with_documents(gold),),
            documents=tuple(Document("", text, n in gold) for n, text in enumerate(texts)),
            source=SOURCE,
            metadata={
                "split": self._split,
                "query": subject.text,
                "notes": [asdict(note) for note in reader.notes],
            },
        )

    def _leads(self, link: str, relation: str) -> bool:
        gives, of = RELATIONS[link]["gives"], RELATIONS[relation]["of"]
        return ("person" if gives in _GENDERS else gives) == of

    def _needed(self, link: str, relation: str, subject: _Name, corrected: bool) -> list[_Saying]:
        """Return what a reader needs, in order: the facts, and what becomes of one of them."""
        rng = self._rng
        early = rng.random() < self._config.early
        corrects_link = bool(link) and rng.random() < 0.4
        first = [self._fact(link, subject)] if link else []
        owner = first[0].value if link else subject
        if corrected and corrects_link:
            first += self._changes(first[0])
            owner = first[-1].value
        last = [self._fact(relation, owner)]
        if corrected and not corrects_link:
            last += self._changes(last[0])
        if not link:
            return last
        if not early:
            return first + last if corrects_link else self._merged(first, last)
        return self._merged(last, first)

    def _merged(self, first: list[_Saying], second: list[_Saying]) -> list[_Saying]:
        """Return both in their order, the second ones anywhere after the first of the first."""
        rest = [*first[1:], *second]
        places = {*self._rng.sample(range(len(rest)), len(second))}
        one, two = iter(first[1:]), iter(second)
        return [first[0], *(next(two if place in places else one) for place in range(len(rest)))]

    def _changes(self, said: _Saying) -> list[_Saying]:
        """Return a correction of a fact, or its retraction and the fact anew."""
        new = self._fact(said.relation, said.subject).value
        if self._rng.random() < 0.7:
            return [_Saying("correction", said.relation, said.subject, new, said.value)]
        return [
            _Saying("retraction", said.relation, said.subject, said.value),
            _Saying("again", said.relation, said.subject, new),
        ]

    def _paragraphs(self, needed: list[_Saying]) -> list[list[_Saying]]:
        """Spread what is needed over the paragraphs, and give others to the rest of them."""
        rng = self._rng
        count = max(rng.randint(*self._count), len(needed))
        places = dict(zip(sorted(rng.sample(range(count), len(needed))), needed, strict=True))
        candidates, changes = 0, 0
        others: list[_Saying] = []
        paragraphs: list[list[_Saying]] = []
        for place in range(count):
            said = [places[place]] if place in places else []
            if not said and others and changes < 1 and rng.random() < self._corrections / 3:
                changes += 1
                said = self._changes(rng.choice(others))[:1]
            elif not said and rng.random() < self._config.distractors:
                similar = rng.random() < 0.5 and candidates < _MOST_CANDIDATES
                candidates += similar
                said = [self._other(needed, alike=similar)]
                others += said
            elif self._level > 1 and rng.random() < _BESIDE:
                beside = self._other(needed, alike=False)
                said.insert(rng.randint(0, len(said)), beside)
            paragraphs.append(said)
        return paragraphs

    def _other(self, needed: list[_Saying], *, alike: bool) -> _Saying:
        """Return a fact that does not matter: of a needed kind about another, or of another."""
        rng = self._rng
        model = rng.choice(needed)
        if alike:
            shared = model.subject if rng.random() < 0.5 else None
            return self._fact(model.relation, self._name(RELATIONS[model.relation]["of"], shared))
        kind = RELATIONS[model.relation]["of"]
        same = [r for r in RELATIONS if RELATIONS[r]["of"] == kind]
        about = rng.random() < 0.5
        asked = {said.relation for said in needed}
        choices = [r for r in (same if about else RELATIONS) if r not in asked]
        other = rng.choice(choices)
        return self._fact(other, model.subject if about else self._name(RELATIONS[other]["of"]))

    def _fact(self, relation: str, subject: _Name) -> _Saying:
        return _Saying("fact", relation, subject, self._name(RELATIONS[relation]["gives"]))

    def _texts(
        self, paragraphs: list[list[_Saying]], needed: list[_Saying], reader: _Reader
    ) -> list[str]:
        """Write the paragraphs, and let the reader take its notes."""
        rng = self._rng
        forms = list(_TEXTS["forms"].values())
        if self._split == "train":
            forms = forms[:-_UNSEEN_FORMS]
        form, one_form = rng.choice(forms), rng.random() < _ONE_FORM
        texts = []
        for number, said in enumerate(paragraphs):
            if not one_form:
                form = rng.choice(forms)
            begins = form["next"] if one_form and number else form["first"]
            parts = [self._filled(self._wording(begins), number)]
            for saying in said:
                sentence, note = self._sentence(saying, matters=saying in needed)
                parts.append(sentence)
                reader.hear(saying, sentence, note)
            if not said or rng.random() < _FILLER:
                parts.insert(rng.randint(1, len(parts)), self._wording(_TEXTS["filler"]))
            if one_form and number + 1 == len(paragraphs) and rng.random() < 0.5:
                parts.append(self._filled(self._wording(form["last"]), number))
            texts.append(" ".join(filter(None, parts)))
        return texts

    def _sentence(self, said: _Saying, *, matters: bool) -> tuple[str, str]:
        """Return what stands in the text, and the note that it is worth."""
        rng, relation = self._rng, RELATIONS[said.relation]
        frame = "{fact}"
        if said.kind == "retraction":
            topic = relation["topic"].format(s=said.subject.text)
            return self._wording(_TEXTS["retractions"]).format(topic=topic), ""
        if said.kind == "correction" and "change" in relation and rng.random() < 0.5:
            wording = self._wording(relation["change"])
        else:
            wording = self._wording_of_split(relation["say"], matters=matters)
            if said.kind != "fact":
                frame = self._wording(_TEXTS["corrections" if said.old else "again"])
        note = _written(_LEFT_OUT.sub("", wording), said.subject.text, said.value)
        wording = re.sub(r"[][]", "", wording)
        contrast, name = None, said.subject.text
        if said.old is None and rng.random() < _CONTRAST:
            contrast = self._name(relation["gives"])
        elif said.old is not None and rng.random() < 0.4:
            contrast = said.old
        if frame == "{fact}" and wording.startswith("{s} ") and rng.random() < _PRONOUN:
            people = said.subject.pronoun != "it"
            bring_up = self._wording(_TEXTS["people"]["person" if people else "other"])
            short = people and rng.random() < 0.4
            frame = f"{bring_up.format(s=name)} {frame}"
            name = said.subject.parts[0] if short else said.subject.pronoun
        return frame.format(fact=_written(wording, name, said.value, contrast)), note

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
        values = {"n": "number", "d": "date", "t": "time", "w": "weekday"}

        def fill(match: re.Match[str]) -> str:
            if match[1] == "n":
                return str(number + 1)
            if match[1] == "x":
                return self._rng.choice(_names(self._rng.choice(("she", "he")), self._split)[0])
            return self._drawn(values[match[1]]).text

        return re.sub(r"\{(\w)\}", fill, text)

    def _name(self, kind: str, like: _Name | None = None) -> _Name:
        """Draw a name or value that the task does not use yet; `like` another one in one part."""
        for _ in range(100):
            name = self._drawn(kind, like)
            if name.text not in self._used:
                break
        self._used.add(name.text)
        return name

    def _drawn(self, kind: str, like: _Name | None = None) -> _Name:
        rng = self._rng
        if kind in _TEXTS["values"]:
            return _Name(rng.choice(_wordings(_TEXTS["values"][kind])))
        if kind in _NUMBERS:
            return _Name(_NUMBERS[kind](rng))
        pronoun = "it"
        lists = _names(kind, self._split) if kind not in _GENDERS else ()
        if kind in _GENDERS:
            pronoun = like.pronoun if like else rng.choice(_GENDERS[kind])
            lists = (_names(pronoun, self._split)[0], _names("surname", self._split)[0])
        parts = [rng.choice(part) for part in lists]
        if like and like.parts:
            shared = rng.randrange(len(parts))
            parts[shared] = like.parts[shared]
        text = (" " if kind in _GENDERS else "").join(parts)
        return _Name(f"the {text}" if kind in _WITH_ARTICLE else text, tuple(parts), pronoun)


class _Reader:
    """Takes the notes of a faultless reader, who knows the question and what it has read."""

    def __init__(self, link: str, relation: str, subject: str) -> None:
        self._link, self._relation, self._subject = link, relation, subject
        self._asked_about = None if link else subject
        self._values: dict[tuple[str, str], str] = {}
        self._noted: dict[tuple[str, str], str] = {}
        self.notes: list[Note] = []

    def hear(self, said: _Saying, sentence: str, note: str) -> None:
        """Take a note if the sentence matters as far as it is known."""
        key, noted = said.key, self._noted.get(said.key)
        is_link = key == (self._link, self._subject)
        matters = is_link or (
            said.relation == self._relation and self._asked_about in (None, said.subject.text)
        )
        self._values[key] = said.value.text
        if is_link:
            self._asked_about = None if said.kind == "retraction" else said.value.text
        if said.kind == "retraction":
            if noted is not None:
                self.notes.append(Note("delete", sentence, replaces=self._noted.pop(key)))
        elif noted is not None:
            self.notes.append(Note("update", sentence, note, noted))
            self._noted[key] = note
        elif matters:
            self.notes.append(Note("create", sentence, note))
            self._noted[key] = note

    @property
    def answer(self) -> str:
        """The value that is asked for."""
        owner = self._values[self._link, self._subject] if self._link else self._subject
        return self._values[self._relation, owner]


def _written(wording: str, subject: str, value: _Name, contrast: _Name | None = None) -> str:
    """Return a sentence of a wording, where a phrase in ``<>`` may deny another value first."""
    before, phrase, after = re.split("[<>]", wording)
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
    lists = _TEXTS["names"][kind]
    found = []
    for text in [lists] if isinstance(lists, str) else lists:
        space = " " if "|" in text else ""
        in_test = {part: md5(part.encode()).digest()[0] % 4 == 0 for part in _wordings(text)}
        found.append(tuple(space + part for part in in_test if in_test[part] == (split == "test")))
    return tuple(found)
