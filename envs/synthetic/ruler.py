"""Tasks of RULER (Hsieh et al. 2024, arXiv 2404.06654) over prose that the user gives.

Needles, variable tracking and word extraction, in the wording of the authors' scripts. Values are
all asked for; `envs.scoring.metrics.all_of_scores` scores them. RULER's questions over documents
are built of HotpotQA's rows (`atommem data build --benchmark hotpotqa`).
"""

import itertools
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from atommem.config import check_choice, check_least, setting
from atommem.envs.task import Document, Question, Task
from atommem.errors import ConfigError, DataError, suggest_path

SOURCE = "ruler"
_NEEDLE = "One of the special magic numbers for {} is: {}."
_NEEDLES = {  # keys in the text, values of a key, keys that are asked for
    "niah_single": (1, 1, 1),
    "niah_multikey": (4, 1, 1),
    "niah_multivalue": (1, 4, 1),
    "niah_multiquery": (4, 1, 4),
}
FAMILIES = (*_NEEDLES, "variable_tracking", "common_words", "frequent_words")
_HOPS = 4
_COMMON, _COMMON_TIMES, _OTHER_TIMES = 10, 30, 3
_FREQUENT = 3
_LEAST_WORD = 4  # letters of a word that may be a key, or be counted


@dataclass(frozen=True)
class RulerConfig:
    """Settings of RULER's tasks."""

    family: str = setting("niah_single", f"{', '.join(FAMILIES)}.")
    prose: str = setting("", "A text file: the haystack, and the words that are drawn.")
    words: int = setting(4000, "Words of a task's text, about.")

    def __post_init__(self) -> None:
        check_choice("family", self.family, FAMILIES)
        check_least(self, words=50)
        if not self.prose:
            raise ConfigError("prose: missing. Give a text file.")


def generate(config: RulerConfig, count: int, seed: int, split: str) -> Iterator[Task]:
    """Yield `count` tasks. Task i depends on `config`, `split`, `seed` and i only."""
    path = Path(config.prose)
    try:
        prose = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"prose={path}: {error}{suggest_path(path)}. Give a UTF-8 text.") from error
    sentences = [s.strip() for s in re.split(r"(?<=[.!?])\s+", " ".join(prose.split()))]
    vocabulary = sorted({w for w in re.findall(r"[a-z]+", prose) if len(w) >= _LEAST_WORD})
    needed = max(100, config.words // 50)
    if len(vocabulary) < needed:
        raise DataError(f"prose={path}: {len(vocabulary)} words, needs {needed}. Give more text.")
    makers = {"variable_tracking": _variables, "common_words": _counted, "frequent_words": _counted}
    make = makers.get(config.family, _needles)
    for index in range(count):
        task_id = f"{config.family}-{split}-{seed}-{index:05d}"
        texts, question, values = make(config, Random(task_id), sentences, vocabulary)
        asked = Question(question, values, task_id, {"all_of": True, "type": config.family})
        documents = tuple(Document("", text, gold) for text, gold in texts)
        yield Task(task_id, (asked,), documents, source=SOURCE)


_Made = tuple[list[tuple[str, bool]], str, tuple[str, ...]]


def _needles(config: RulerConfig, rng: Random, sentences: list[str], lexicon: list[str]) -> _Made:
    keys, each, asked = _NEEDLES[config.family]
    names = rng.sample(lexicon, keys)
    values = iter([str(number) for number in rng.sample(range(1_000_000, 10_000_000), keys * each)])
    held = {name: [next(values) for _ in range(each)] for name in names}
    queried = names[:asked]
    needles = [(_NEEDLE.format(key, value), key in queried) for key in names for value in held[key]]
    rng.shuffle(needles)
    listed = ", ".join(queried[:-1]) + f", and {queried[-1]}" if asked > 1 else queried[0]
    are, plural = ("are all", "s") if asked * each > 1 else ("is", "")
    number = f"special magic number{plural} for {listed}"
    question = f"What {are} the {number} mentioned in the provided text?"
    wanted = tuple(value for name in queried for value in held[name])
    return _hidden(config, rng, sentences, needles), question, wanted


def _variables(config: RulerConfig, rng: Random, sentences: list[str], lexicon: list[str]) -> _Made:
    names = ["".join(rng.choices(string.ascii_uppercase, k=5)) for _ in range(_HOPS + 1)]
    value = str(rng.randint(10_000, 99_999))
    chain = [f"VAR {names[0]} = {value}."]
    chain += [f"VAR {new} = VAR {old}." for old, new in itertools.pairwise(names)]
    texts = _hidden(config, rng, sentences, [(line, True) for line in chain])
    question = f"Find all variables that are assigned the value {value} in the text above."
    return texts, question, tuple(names)


def _hidden(
    config: RulerConfig, rng: Random, sentences: list[str], needles: list[tuple[str, bool]]
) -> list[tuple[str, bool]]:
    """Hide needles, in their order, between sentences of the prose; return paragraphs."""
    hay: list[tuple[str, bool]] = []
    at, count = rng.randrange(len(sentences)), 0
    while count < config.words:
        hay.append((sentences[(at + len(hay)) % len(sentences)], False))
        count += len(hay[-1][0].split())
    places = sorted(rng.choices(range(len(hay) + 1), k=len(needles)), reverse=True)
    for place, needle in zip(places, reversed(needles), strict=True):
        hay.insert(place, needle)
    parts = [hay[at : at + 5] for at in range(0, len(hay), 5)]
    return [(" ".join(text for text, _ in part), any(gold for _, gold in part)) for part in parts]


def _counted(config: RulerConfig, rng: Random, sentences: list[str], lexicon: list[str]) -> _Made:
    if config.family == "common_words":
        others = max((config.words - _COMMON * _COMMON_TIMES) // _OTHER_TIMES, _COMMON)
        words = rng.sample(lexicon, min(_COMMON + others, len(lexicon)))
        wanted = tuple(words[:_COMMON])
        stream = [w for w in words for _ in range(_COMMON_TIMES if w in wanted else _OTHER_TIMES)]
        question = f"What are the {_COMMON} most common words in the above list?"
    else:  # coded words with the frequencies of Zipf's law, alpha 2
        words = ["".join(rng.choices(string.ascii_lowercase, k=6)) for _ in range(50)]
        times = [max(int(config.words * 0.6 / rank**2), 1) for rank in range(1, len(words) + 1)]
        wanted = tuple(words[:_FREQUENT])
        stream = [word for word, count in zip(words, times, strict=True) for _ in range(count)]
        question = "What are the three most frequently appeared words in the above coded text?"
    rng.shuffle(stream)
    parts = [stream[at : at + 100] for at in range(0, len(stream), 100)]
    return [(" ".join(part), True) for part in parts], question, wanted
