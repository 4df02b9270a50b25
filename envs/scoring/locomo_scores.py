"""How answers to LoCoMo are scored: the rules of its ``task_eval/evaluation.py``, by category.

Its normalisation drops commas before anything else, and "and" with the articles; F1 compares Porter stems. Questions of
category multi_hop have several answers, separated by commas: each is held against its best match among those given.
Adversarial questions ask what the conversation does not say: an answer is right if it says so, and only then.

Exact match is ours, for the official script reports none: SQuAD's, and that of abstention for adversarial questions.
"""

from __future__ import annotations

import re
import string
from collections import Counter

from atommem.envs.scoring.metrics import exact_match
from atommem.envs.scoring.porter import stem
from atommem.envs.task import Question

LOCOMO_SOURCE = "locomo"
CATEGORIES = {1: "multi_hop", 2: "temporal", 3: "open_domain", 4: "single_hop", 5: "adversarial"}
ABSTENTION = "not mentioned"

_ABSTENTIONS = ("no information available", ABSTENTION)
_DROPPED_WORDS = re.compile(r"\b(?:a|an|the|and)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def abstains(answer: str | None) -> bool:
    """Whether an answer says that the conversation does not tell."""
    return answer is not None and any(phrase in answer.lower() for phrase in _ABSTENTIONS)


def locomo_exact_match(question: Question, answer: str | None) -> float:
    """1.0 for the gold answer; for an adversarial question, for an abstention."""
    if question.metadata.get("category") == "adversarial":
        return float(abstains(answer))
    return exact_match(answer, question.answers)


def locomo_f1(question: Question, answer: str | None) -> float:
    """The official score of an answer, in [0, 1], by the category of `question`; None or blank earns 0."""
    category = question.metadata.get("category")
    if category == "adversarial":
        return float(abstains(answer))
    if answer is None:
        return 0.0
    gold = question.answers[0]
    if category != "multi_hop":
        return _f1(answer, gold)
    given = answer.split(",")
    wanted = gold.split(",")
    return sum(max(_f1(one, part) for one in given) for part in wanted) / len(wanted)


def _f1(prediction: str, gold: str) -> float:
    predicted, wanted = _stems(prediction), _stems(gold)
    common = sum((Counter(predicted) & Counter(wanted)).values())
    return 2 * common / (len(predicted) + len(wanted)) if common else 0.0


def _stems(text: str) -> list[str]:
    return [stem(word) for word in _DROPPED_WORDS.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()]
