"""Scores of LoCoMo: the rules of its ``task_eval/evaluation.py``, by category.

Its normalisation drops punctuation and, with the articles, "and"; F1 compares Porter stems.
Questions of category multi_hop have several answers, separated by commas: each is compared with its
best match. An answer to an adversarial question is right if it says that the conversation does not
tell, or is the letter of the option that does (`atommem.envs.benchmarks.locomo.PROTOCOL`).

The official script has no exact match: ours is SQuAD's, and abstention for adversarial questions.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from functools import cache, lru_cache
from typing import Any

from atommem.envs.scoring.metrics import abstains, exact_match
from atommem.envs.task import Question
from atommem.errors import ConfigError

LOCOMO_SOURCE = "locomo"
CATEGORIES = {1: "multi_hop", 2: "temporal", 3: "open_domain", 4: "single_hop", 5: "adversarial"}
_OPTION = re.compile(r"\(?([ab])\)?")
_DROPPED_WORDS = re.compile(r"\b(?:a|an|the|and)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def locomo_exact_match(question: Question, answer: str | None) -> float:
    """Return 1.0 for the gold answer, or for an abstention to an adversarial question."""
    if question.metadata.get("category") == "adversarial":
        return float(abstains(_chosen(question, answer)))
    return exact_match(answer, question.answers)


def locomo_f1(question: Question, answer: str | None) -> float:
    """Return the official score of an answer in [0, 1]; None or blank scores 0."""
    category = question.metadata.get("category")
    if category == "adversarial":
        return float(abstains(_chosen(question, answer)))
    if answer is None:
        return 0.0
    gold = question.answers[0]
    if category != "multi_hop":
        return _f1(answer, gold)
    given = answer.split(",")
    wanted = gold.split(",")
    return sum(max(_f1(one, part) for one in given) for part in wanted) / len(wanted)


def _chosen(question: Question, answer: str | None) -> str | None:
    """Return the option if the answer is its letter, (a) or (b), or else the answer."""
    letter = _OPTION.fullmatch((answer or "").strip().lower())
    options: dict[str, str] = question.metadata.get("options", {})
    return options.get(letter[1], answer) if letter else answer


def _f1(prediction: str, gold: str) -> float:
    predicted, wanted = _stems(prediction), _stems(gold)
    common = sum((Counter(predicted) & Counter(wanted)).values())
    return 2 * common / (len(predicted) + len(wanted)) if common else 0.0


def _stems(text: str) -> list[str]:
    words = _DROPPED_WORDS.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()
    return [stem(word) for word in words]


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """Return the Porter stem of a word in NLTK's default mode, which LoCoMo's script uses."""
    found: str = _stemmer().stem(word)
    return found


@cache
def _stemmer() -> Any:
    try:
        from nltk.stem.porter import PorterStemmer  # on first use: the import takes seconds
    except ImportError as error:
        raise ConfigError(
            f"LoCoMo's scores need nltk ({error}). Install it: pip install 'atommem[data]'."
        ) from error
    return PorterStemmer()
