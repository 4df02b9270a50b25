"""Told facts: short texts in plain English with one question, and what to note while reading.

A task is a letter, a diary, minutes or another form of text (``told.yaml``). Its question asks for
one fact, or for a fact about the value of another one. Facts are corrected and withdrawn, and stand
among facts about others. Train and test splits share no name; test splits have wordings and forms
that train splits never show.
"""

import re
from dataclasses import dataclass

from atommem.config import check_probabilities, check_ranges, setting
from atommem.envs.synthetic.expert import Note
from atommem.envs.synthetic.writing import GENDERS, TEXTS, Name, Saying, Writer, written
from atommem.envs.task import Question, Task

SOURCE = "told"
RELATIONS: dict[str, dict[str, str]] = TEXTS["relations"]
_LEFT_OUT = re.compile(r" ?\[[^]]*\](?=[.,])|\[[^]]*\]")
_PRONOUN, _CONTRAST, _BESIDE = 0.3, 0.15, 0.25
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
        check_ranges(self, levels=len(_LEVELS))
        check_probabilities(self, "distractors", "early")


_LEVELS = (
    # paragraphs, chance of two hops, chance of a correction
    ((2, 2), 0.0, 0.0),
    ((3, 4), 0.0, 0.35),
    ((4, 6), 0.5, 0.4),
    ((6, 12), 0.8, 0.5),
)


class _ToldWriter(Writer):
    source = SOURCE

    def task(self, config: ToldConfig) -> Task:
        rng = self._rng
        self._config = config
        self._level = rng.randint(*config.levels)
        self._count, self._two_hops, self._corrections = _LEVELS[self._level - 1]
        relation = rng.choice(list(RELATIONS))
        links = [name for name in RELATIONS if name != relation and self._leads(name, relation)]
        link = rng.choice(links) if links and rng.random() < self._two_hops else ""
        subject = self._name(RELATIONS[link or relation]["of"])
        needed = self._needed(link, relation, subject, rng.random() < self._corrections)
        paragraphs = self._paragraphs(needed)
        reader = _Reader(link, relation, subject.text)

        def write(said: Saying) -> str:
            sentence, note = self._sentence(said, matters=said in needed)
            reader.hear(said, sentence, note)
            return sentence

        texts = self._texts(paragraphs, write)
        topic = RELATIONS[link]["topic"].format(s=subject.text) if link else subject.text
        ask = self._wording_of_split(RELATIONS[relation]["ask"])
        details = {
            "hops": 1 + bool(link),
            "level": self._level,
            "corrected": len(needed) > 1 + bool(link),
            "unseen": self._unseen,
        }
        question = Question(ask.format(s=topic), (reader.answer,), self._id, details)
        gold = [n for n, said in enumerate(paragraphs) if not {*needed}.isdisjoint(said)]
        return self._task([(question, gold)], texts, subject.text, reader.notes)

    def _leads(self, link: str, relation: str) -> bool:
        gives, of = RELATIONS[link]["gives"], RELATIONS[relation]["of"]
        return ("person" if gives in GENDERS else gives) == of

    def _needed(self, link: str, relation: str, subject: Name, corrected: bool) -> list[Saying]:
        """Return what a reader needs, in order: the facts, and what becomes of one of them."""
        rng = self._rng
        early = rng.random() < self._config.early
        corrects_link = bool(link) and rng.random() < 0.4
        first = [self._fact(link, subject)] if link else []
        if corrected and corrects_link:
            first += self._changes(first[0])
        last = [self._fact(relation, first[-1].value if first else subject)]
        if corrected and not corrects_link:
            last += self._changes(last[0])
        if not link:
            return last
        if not early:
            return first + last if corrects_link else self._merged(first, last)
        return self._merged(last, first)

    def _merged(self, first: list[Saying], second: list[Saying]) -> list[Saying]:
        """Return both in their order, the second ones anywhere after the first of the first."""
        rest = [*first[1:], *second]
        places = {*self._rng.sample(range(len(rest)), len(second))}
        one, two = iter(first[1:]), iter(second)
        return [first[0], *(next(two if place in places else one) for place in range(len(rest)))]

    def _changes(self, said: Saying) -> list[Saying]:
        """Return a correction of a fact, or its retraction and the fact anew."""
        new = self._fact(said.relation, said.subject).value
        if self._rng.random() < 0.7:
            return [Saying("correction", said.relation, said.subject, new, said.value)]
        return [
            Saying("retraction", said.relation, said.subject, said.value),
            Saying("again", said.relation, said.subject, new),
        ]

    def _paragraphs(self, needed: list[Saying]) -> list[list[Saying]]:
        """Spread what is needed over the paragraphs, and give others to the rest of them."""
        rng = self._rng
        count = max(rng.randint(*self._count), len(needed))
        places = dict(zip(sorted(rng.sample(range(count), len(needed))), needed, strict=True))
        candidates, changes = 0, 0
        others: list[Saying] = []
        paragraphs: list[list[Saying]] = []
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
                said.insert(rng.randint(0, len(said)), self._other(needed, alike=False))
            paragraphs.append(said)
        return paragraphs

    def _other(self, needed: list[Saying], *, alike: bool) -> Saying:
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
        other = rng.choice([r for r in (same if about else RELATIONS) if r not in asked])
        return self._fact(other, model.subject if about else self._name(RELATIONS[other]["of"]))

    def _fact(self, relation: str, subject: Name) -> Saying:
        return Saying("fact", relation, subject, self._name(RELATIONS[relation]["gives"]))

    def _sentence(self, said: Saying, *, matters: bool) -> tuple[str, str]:
        """Return what stands in the text, and the note that it is worth."""
        rng, relation = self._rng, RELATIONS[said.relation]
        frame = "{fact}"
        if said.kind == "retraction":
            topic = relation["topic"].format(s=said.subject.text)
            return self._wording(TEXTS["retractions"]).format(topic=topic), ""
        if said.kind == "correction" and "change" in relation and rng.random() < 0.5:
            wording = self._wording(relation["change"])
        else:
            wording = self._wording_of_split(relation["say"], matters=matters)
            if said.kind != "fact":
                frame = self._wording(TEXTS["corrections" if said.old else "again"])
        note = written(_LEFT_OUT.sub("", wording), said.subject.text, said.value)
        contrast, name = None, said.subject.text
        if rng.random() < (_CONTRAST if said.old is None else 0.4):
            contrast = said.old or self._name(relation["gives"])
        if frame == "{fact}" and wording.startswith("{s} ") and rng.random() < _PRONOUN:
            people = said.subject.pronoun != "it"
            bring_up = self._wording(TEXTS["people"]["person" if people else "other"])
            frame = f"{bring_up.format(s=name)} {frame}"
            short = people and rng.random() < 0.4
            name = said.subject.parts[0] if short else said.subject.pronoun
        return frame.format(fact=written(wording, name, said.value, contrast)), note


class _Reader:
    """Takes the notes of a faultless reader, who knows the question and what it has read."""

    def __init__(self, link: str, relation: str, subject: str) -> None:
        self._link, self._relation, self._subject = link, relation, subject
        self._asked_about = None if link else subject
        self._values: dict[tuple[str, str], str] = {}
        self._noted: dict[tuple[str, str], str] = {}
        self.notes: list[Note] = []

    def hear(self, said: Saying, sentence: str, note: str) -> None:
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
        elif noted is not None or matters:
            kind = "create" if noted is None else "update"
            self.notes.append(Note(kind, sentence, note, noted or ""))
            self._noted[key] = note

    @property
    def answer(self) -> str:
        owner = self._values[self._link, self._subject] if self._link else self._subject
        return self._values[self._relation, owner]


generate = _ToldWriter.generate
