"""Ledgers: questions whose answers no sentence states, in plain English.

Entries of several accounts are scattered over a text; some are corrected or struck later. A
question asks for the number of an account's entries, for their sum, or for the latest one. A
faultless reader holds one running value for each question in its memory, and updates it (after
Ledger-QA of UMA, arXiv 2602.18493; wording and form are ours).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from atommem.config import check_probabilities, check_ranges, setting
from atommem.envs.synthetic.expert import Note
from atommem.envs.synthetic.writing import TEXTS, Name, Saying, Writer, written
from atommem.envs.task import Question, Task

SOURCE = "ledger"
_TEXTS = TEXTS["ledger"]
_KINDS: dict[str, str] = _TEXTS["kinds"]
_ASKED: dict[str, str] = _TEXTS["ask"]
_AMOUNTS = range(2, 100)
_STRUCK = 0.4


@dataclass(frozen=True)
class LedgerConfig:
    """Settings of ledgers. Pairs are inclusive ranges."""

    paragraphs: tuple[int, int] = setting((6, 12), "Paragraphs of a text, more if needed.")
    questions: tuple[int, int] = setting((1, 1), "Questions of a task, each about one account.")
    updates: tuple[int, int] = setting((2, 5), "Entries of an account that is asked about.")
    corrections: float = setting(0.2, "Chance that an entry is corrected or struck later.")
    distractors: float = setting(0.7, "Share of the other paragraphs with entries of others.")

    def __post_init__(self) -> None:
        check_ranges(self, paragraphs=1000, questions=4, updates=40)
        check_probabilities(self, "corrections", "distractors")


@dataclass
class _Account:
    """What a person did, what is asked of it, and what a reader knows and has noted."""

    verb: str
    subject: Name
    asked: str
    entries: list[int] = field(default_factory=list)
    noted: str = ""

    @property
    def value(self) -> int:
        found = {"count": len(self.entries), "sum": sum(self.entries), "latest": self.entries[-1]}
        return found[self.asked]

    def fill(self, wording: str, **more: int) -> str:
        return wording.format(s=self.subject.text, verb=self.verb, unit=_KINDS[self.verb], **more)

    def notes(self, said: Saying, sentence: str) -> Iterator[Note]:
        """Yield the note of a sentence, if it changes the value."""
        if said.kind != "fact":
            self.entries.pop()
        if said.kind != "retraction":
            self.entries.append(int(said.value.text.split()[0]))
        text = self.fill(_TEXTS["note"][self.asked], n=self.value)
        if text != self.noted:
            yield Note("update" if self.noted else "create", sentence, text, self.noted)
        self.noted = text


class _LedgerWriter(Writer):
    source = SOURCE

    def task(self, config: LedgerConfig) -> Task:
        rng = self._rng
        accounts: dict[tuple[str, str], _Account] = {}
        for _ in range(rng.randint(*config.questions)):
            verb, subject = rng.choice(list(_KINDS)), self._name("person")
            accounts[verb, subject.text] = _Account(verb, subject, rng.choice(list(_ASKED)))
        timed = [item for account in accounts.values() for item in self._entries(config, account)]
        needed = [said for _, said in sorted(timed, key=lambda item: item[0])]
        count = max(rng.randint(*config.paragraphs), len(needed))
        places = dict(zip(sorted(rng.sample(range(count), len(needed))), needed, strict=True))
        paragraphs = []
        for place in range(count):
            others = rng.random() < config.distractors
            other = [self._other(rng.choice(needed))] if others and place not in places else []
            paragraphs.append([places[place]] if place in places else other)
        notes: list[Note] = []

        def write(said: Saying) -> str:
            text = self._wording_of_split(_TEXTS["entry" if said.kind == "fact" else said.kind])
            wording = text.replace("{verb}", said.relation)
            sentence = written(wording, said.subject.text, said.value, said.old)
            if said.key in accounts:
                notes.extend(accounts[said.key].notes(said, sentence))
            return sentence

        texts = self._texts(paragraphs, write)
        asked = []
        for number, (key, account) in enumerate(accounts.items()):
            text = account.fill(self._wording_of_split(_ASKED[account.asked]))
            details = {"type": account.asked}
            question = Question(text, (str(account.value),), f"{self._id}-{number}", details)
            gold = [place for place, said in places.items() if said.key == key]
            asked.append((question, gold))
        return self._task(asked, texts, " ".join(name for _, name in accounts), notes)

    def _entries(self, config: LedgerConfig, account: _Account) -> Iterator[tuple[float, Saying]]:
        rng = self._rng
        verb, subject = account.verb, account.subject
        updates = rng.randint(*config.updates)
        times = iter(sorted(rng.random() for _ in range(2 * updates)))
        # No two amounts of an account are the same, so that its sentences differ.
        amounts = (Name(f"{amount} {_KINDS[verb]}") for amount in rng.sample(_AMOUNTS, 2 * updates))
        for number in range(updates):
            amount = next(amounts)
            yield next(times), Saying("fact", verb, subject, amount)
            if rng.random() < config.corrections:
                if number and account.asked != "latest" and rng.random() < _STRUCK:
                    yield next(times), Saying("retraction", verb, subject, amount)
                else:
                    yield next(times), Saying("correction", verb, subject, next(amounts), amount)

    def _other(self, model: Saying) -> Saying:
        """Return an entry of another ledger, of another person, or of one of a similar name."""
        rng = self._rng
        verb, subject = model.relation, model.subject
        if rng.random() < 0.3:
            verb = rng.choice([other for other in _KINDS if other != verb])
        if verb == model.relation or rng.random() < 0.5:
            subject = self._name("person", subject if rng.random() < 0.5 else None)
        return Saying("fact", verb, subject, Name(f"{rng.choice(_AMOUNTS)} {_KINDS[verb]}"))


generate = _LedgerWriter.generate
