"""Ledgers: questions whose answers no sentence states, in plain English.

Entries of several accounts are scattered over a text; some are corrected or struck later. A
question asks for the number of an account's entries, for their sum, or for the latest one. The
notes of a faultless reader hold a running value in one entry of its memory for each question, and
update it (after Ledger-QA of UMA, arXiv 2602.18493; wording and form are ours).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from atommem.config import check_choice, check_probabilities, setting
from atommem.envs.synthetic.notes import Note
from atommem.envs.synthetic.writing import SPLITS, TEXTS, Name, Saying, Writer, written
from atommem.envs.task import Question, Task
from atommem.errors import ConfigError

SOURCE = "ledger"
_TEXTS = TEXTS["ledger"]
_KINDS: dict[str, str] = _TEXTS["kinds"]
_ASKED: dict[str, str] = _TEXTS["ask"]
_AMOUNTS = range(2, 100)
_STRUCK = 0.4
Account = tuple[str, str]
"""Kind of the ledger (its verb), and name of the person."""


@dataclass(frozen=True)
class LedgerConfig:
    """Settings of ledgers. Pairs are inclusive ranges."""

    paragraphs: tuple[int, int] = setting((6, 12), "Paragraphs of a text, more if needed.")
    questions: tuple[int, int] = setting((1, 1), "Questions of a task, each about one account.")
    updates: tuple[int, int] = setting((2, 5), "Entries of an account that is asked about.")
    corrections: float = setting(0.2, "Chance that an entry is corrected or struck later.")
    distractors: float = setting(0.7, "Share of the other paragraphs with entries of others.")

    def __post_init__(self) -> None:
        for name, most in (("paragraphs", 1000), ("questions", 4), ("updates", len(_AMOUNTS) // 2)):
            low, high = getattr(self, name)
            if not 1 <= low <= high <= most:
                raise ConfigError(f"{name}={low}-{high}: not a range within 1-{most}. Give one.")
        check_probabilities(self, "corrections", "distractors")


def generate(config: LedgerConfig, count: int, seed: int, split: str) -> Iterator[Task]:
    """Yield `count` tasks. Task i depends on `config`, `split`, `seed` and i only."""
    check_choice("split", split, SPLITS)
    for index in range(count):
        yield _LedgerWriter(f"{SOURCE}-{split}-{seed}-{index:05d}", split).task(config)


class _LedgerWriter(Writer):
    def task(self, config: LedgerConfig) -> Task:
        """Return the task."""
        rng = self._rng
        asked = {
            (rng.choice(list(_KINDS)), self._name("person")): rng.choice(list(_ASKED))
            for _ in range(rng.randint(*config.questions))
        }
        timed = [
            (time, said)
            for (kind, subject), what in asked.items()
            for time, said in self._entries(config, kind, subject, struck=what != "latest")
        ]
        needed = [said for _, said in sorted(timed, key=lambda item: item[0])]
        count = max(rng.randint(*config.paragraphs), len(needed))
        places = dict(zip(sorted(rng.sample(range(count), len(needed))), needed, strict=True))
        paragraphs = []
        for place in range(count):
            said = [places[place]] if place in places else []
            if not said and rng.random() < config.distractors:
                said = [self._other(needed)]
            paragraphs.append(said)
        accounts = {(kind, subject.text): what for (kind, subject), what in asked.items()}
        reader = _Bookkeeper(accounts)
        texts = self._texts(paragraphs, needed, reader)
        questions = []
        for number, ((verb, name), what) in enumerate(accounts.items()):
            wording = self._wording_of_split(_ASKED[what])
            question = Question(
                wording.format(s=name, verb=verb, unit=_KINDS[verb]),
                (str(reader.value(verb, name)),),
                f"{self._id}-{number}",
                {"type": what},
            )
            gold = [n for n, said in enumerate(paragraphs) if said and said[0].key == (verb, name)]
            questions.append((question, gold))
        query = " ".join(name for _, name in accounts)
        return self._task(SOURCE, questions, texts, query, reader.notes)

    def _entries(
        self, config: LedgerConfig, kind: str, subject: Name, *, struck: bool
    ) -> Iterator[tuple[float, Saying]]:
        """Yield the entries of an account and what becomes of them, with their times."""
        rng = self._rng
        updates = rng.randint(*config.updates)
        times = iter(sorted(rng.random() for _ in range(2 * updates)))
        # No two amounts of an account are the same, so that its sentences differ.
        drawn = rng.sample(_AMOUNTS, 2 * updates)
        amounts = (Name(f"{amount} {_KINDS[kind]}") for amount in drawn)
        for number in range(updates):
            amount = next(amounts)
            yield next(times), Saying("fact", kind, subject, amount)
            if rng.random() < config.corrections:
                if struck and number and rng.random() < _STRUCK:
                    yield next(times), Saying("retraction", kind, subject, amount)
                else:
                    new = next(amounts)
                    yield next(times), Saying("correction", kind, subject, new, amount)

    def _other(self, needed: list[Saying]) -> Saying:
        """Return an entry of another ledger, of another person, or of one of a similar name."""
        rng = self._rng
        kind, subject = (model := rng.choice(needed)).relation, model.subject
        if rng.random() < 0.3:
            kind = rng.choice([other for other in _KINDS if other != kind])
        if kind == model.relation or rng.random() < 0.5:
            subject = self._name("person", subject if rng.random() < 0.5 else None)
        return Saying("fact", kind, subject, Name(f"{rng.choice(_AMOUNTS)} {_KINDS[kind]}"))

    def _sentence(self, said: Saying, *, matters: bool) -> tuple[str, str]:
        text = _TEXTS["entry" if said.kind == "fact" else said.kind]
        wording = self._wording_of_split(text, matters=matters).replace("{verb}", said.relation)
        wording = wording.replace("[", "").replace("]", "")
        return written(wording, said.subject.text, said.value, said.old), ""


class _Bookkeeper:
    """Takes the notes of a faultless reader, who keeps the value that each question asks for."""

    def __init__(self, accounts: Mapping[Account, str]) -> None:
        self._accounts = accounts
        self._entries: dict[Account, list[int]] = {account: [] for account in accounts}
        self._noted: dict[Account, str] = {}
        self.notes: list[Note] = []

    def value(self, verb: str, name: str) -> int:
        """Return the value that is asked for, as far as the text was read."""
        entries = self._entries[verb, name]
        what = self._accounts[verb, name]
        return {"count": len(entries), "sum": sum(entries), "latest": entries[-1]}[what]

    def hear(self, said: Saying, sentence: str, note: str) -> None:
        """Take a note if the value changes."""
        if said.key not in self._accounts:
            return
        entries, (verb, name) = self._entries[said.key], said.key
        if said.kind != "fact":
            entries.pop()
        if said.kind != "retraction":
            entries.append(int(said.value.text.split()[0]))
        wording: str = _TEXTS["note"][self._accounts[said.key]]
        note = wording.format(s=name, verb=verb, unit=_KINDS[verb], n=self.value(verb, name))
        old = self._noted.get(said.key)
        if note != old:
            kind = "create" if old is None else "update"
            self.notes.append(Note(kind, sentence, note, old or ""))
            self._noted[said.key] = note
