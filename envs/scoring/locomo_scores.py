"""Scores of LoCoMo: the rules of its ``task_eval/evaluation.py``, by category.

Its normalisation drops punctuation and, with the articles, "and"; F1 compares Porter stems.
Questions of category multi_hop have several answers, separated by commas: each is compared with its
best match. An answer to an adversarial question is right if it says that the conversation does not
tell, or is the letter of the option that does (`atommem.envs.benchmarks.locomo.OFFICIAL`).
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any

from atommem.envs.scoring.metrics import NO_PUNCTUATION, abstains, exact_match, token_f1
from atommem.envs.task import Question
from atommem.errors import ConfigError

LOCOMO_SOURCE = "locomo"
CATEGORIES = {1: "multi_hop", 2: "temporal", 3: "open_domain", 4: "single_hop", 5: "adversarial"}
_OPTION = re.compile(r"\(?([ab])\)?")
_DROPPED_WORDS = re.compile(r"\b(?:a|an|the|and)\b")


def locomo_scores(question: Question, answer: str | None) -> tuple[float, float]:
    """Return exact match and the official F1; the official script has no exact match."""
    category, gold = question.metadata.get("category"), question.answers[0]
    if category == "adversarial":
        abstained = float(abstains(_chosen(question, answer)))
        return abstained, abstained
    em = exact_match(answer, question.answers)
    if answer is None:
        return em, 0.0
    if category != "multi_hop":
        return em, token_f1(_stems(answer), _stems(gold))
    given = [_stems(part) for part in answer.split(",")]
    best = [max(token_f1(one, _stems(part)) for one in given) for part in gold.split(",")]
    return em, sum(best) / len(best)


def _chosen(question: Question, answer: str | None) -> str | None:
    """Return the option if the answer is its letter, (a) or (b), or else the answer."""
    letter = _OPTION.fullmatch((answer or "").strip().lower())
    options: dict[str, str] = question.metadata.get("options", {})
    return options.get(letter[1], answer) if letter else answer


def _stems(text: str) -> list[str]:
    words = _DROPPED_WORDS.sub(" ", text.lower().translate(NO_PUNCTUATION)).split()
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
