"""Lines to classify and count, in the form of OOLONG's synthetic tasks (arXiv 2511.02817).

Every line has a date, a user and a sentence about one of a few labels, which are not given: they
are relations of told facts, and sentences are their wordings. A question aggregates over all
lines, over those of one user, or over those before a date. OOLONG's own rows are read as well
(`atommem.envs.benchmarks.long_texts.parse_oolong`), and `oolong_score` scores both.
"""

import datetime as dt
import re
from collections import Counter
from dataclasses import dataclass

from atommem.config import check_least, setting
from atommem.envs.scoring.metrics import OOLONG_SOURCE
from atommem.envs.synthetic.told import RELATIONS
from atommem.envs.synthetic.writing import Writer, written
from atommem.envs.task import Document, Question, Task
from atommem.errors import ConfigError

_LABELS = {
    re.sub(r"^the | (of|for) \{s\}$", "", relation["topic"]): name
    for name, relation in RELATIONS.items()
    if relation["of"] == "person"
}
_COMPARED = {1: "more common than", 0: "same frequency as", -1: "less common than"}
_LINES_OF_DOCUMENT = 10
Line = tuple[dt.date, int, str]  # date, user and label


@dataclass(frozen=True)
class OolongConfig:
    """Settings of lines to count."""

    lines: int = setting(60, "Lines of a text.")
    labels: int = setting(4, f"Labels of a text, 2 to {len(_LABELS)}.")
    users: int = setting(5, "Users of a text.")

    def __post_init__(self) -> None:
        check_least(self, lines=1, labels=2, users=1)
        if self.labels > len(_LABELS):
            raise ConfigError(f"labels={self.labels}: there are {len(_LABELS)}. Give at most that.")


class _LinesWriter(Writer):
    source = OOLONG_SOURCE

    def task(self, config: OolongConfig) -> Task:
        rng = self._rng
        labels = rng.sample(list(_LABELS), config.labels)
        weights = [rng.random() for _ in labels]
        users = rng.sample(range(10_000, 100_000), config.users)
        start = dt.date(rng.randint(2015, 2025), 1, 1)
        days = sorted(rng.randrange(365) for _ in range(config.lines))
        drawn = rng.choices(labels, weights, k=config.lines)
        lines = [
            (start + dt.timedelta(day), rng.choice(users), label)
            for day, label in zip(days, drawn, strict=True)
        ]
        texts = [f"{date} | user {user} | {self._sentence(label)}" for date, user, label in lines]
        parts = [
            "\n".join(texts[at : at + _LINES_OF_DOCUMENT])
            for at in range(0, len(texts), _LINES_OF_DOCUMENT)
        ]
        listed = ", ".join(labels)
        intro = f"Each line has a date, a user and a sentence about one of these: {listed}."
        documents = tuple(Document("", text) for text in (intro, *parts))
        return Task(self._id, (self._question(lines, labels),), documents, source=OOLONG_SOURCE)

    def _sentence(self, label: str) -> str:
        relation = RELATIONS[_LABELS[label]]
        wording = self._wording_of_split(relation["say"])
        return written(wording, self._drawn("person").text, self._drawn(relation["gives"]))

    def _question(self, lines: list[Line], labels: list[str]) -> Question:
        rng = self._rng
        date, user, _ = rng.choice(lines)
        groups = {
            "counting": ("In all lines", lines),
            "user": (f"In the lines of user {user}", [one for one in lines if one[1] == user]),
            "timeline": (f"In the lines up to {date}", [one for one in lines if one[0] <= date]),
        }
        group = rng.choice(list(groups))
        where, counted = groups[group]
        counts = Counter(dict.fromkeys(labels, 0))
        counts.update(label for *_, label in counted)
        ranked = [label for label, _ in counts.most_common()]
        one, other = rng.sample(labels, 2)
        order = (counts[one] > counts[other]) - (counts[one] < counts[other])
        question = f"is the {one} more common than the {other}, less common than it, or of the "
        asked = [
            (f"how many sentences are about the {one}?", str(counts[one]), "NUMERIC"),
            (question + "same frequency as it?", _COMPARED[order], "COMPARISON"),
        ]
        if counts[ranked[0]] > counts[ranked[1]]:
            asked.append(("what are the sentences about most often?", ranked[0], "LABEL"))
        if counts[ranked[-1]] < counts[ranked[-2]]:
            asked.append(("what are the sentences about least often?", ranked[-1], "LABEL"))
        text, gold, kind = rng.choice(asked)
        details = {"type": group, "answer_type": f"ANSWER_TYPE.{kind}"}
        return Question(f"{where}, {text}", (gold,), self._id, details)


generate = _LinesWriter.generate
