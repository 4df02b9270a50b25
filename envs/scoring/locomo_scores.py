"""How answers to LoCoMo are scored: the rules of its ``task_eval/evaluation.py``, by category.

Its normalisation drops commas before anything else, and "and" with the articles; F1 compares Porter stems. Questions of
category multi_hop have several answers, separated by commas: each is held against its best match among those given.
Adversarial questions ask what the conversation does not say: an answer is right if it says so, and only then, or if it
is the letter of the option that does (`atommem.envs.benchmarks.locomo.PROTOCOL`).

Exact match is ours, for the official script reports none: SQuAD's, and that of abstention for adversarial questions.
"""

from __future__ import annotations

import re
import string
from collections import Counter

from atommem.envs.scoring.abstention import abstains
from atommem.envs.scoring.metrics import exact_match
from atommem.envs.scoring.porter import stem
from atommem.envs.task import Question

LOCOMO_SOURCE = "locomo"
CATEGORIES = {1: "multi_hop", 2: "temporal", 3: "open_domain", 4: "single_hop", 5: "adversarial"}
_OPTION = re.compile(r"\(?([ab])\)?")
_DROPPED_WORDS = re.compile(r"\b(?:a|an|the|and)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def locomo_exact_match(question: Question, answer: str | None) -> float:
    """1.0 for the gold answer; for an adversarial question, for an abstention."""
    if question.metadata.get("category") == "adversarial":
        return float(abstains(_chosen(question, answer)))
    return exact_match(answer, question.answers)


def locomo_f1(question: Question, answer: str | None) -> float:
    """The official score of an answer, in [0, 1], by the category of `question`; None or blank earns 0."""
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
    """What an answer says: the option, where all of it is the letter of one, (a) or (b)."""
    letter = _OPTION.fullmatch((answer or "").strip().lower())
    options: dict[str, str] = question.metadata.get("options", {})
    return options.get(letter[1], answer) if letter else answer


def _f1(prediction: str, gold: str) -> float:
    predicted, wanted = _stems(prediction), _stems(gold)
    common = sum((Counter(predicted) & Counter(wanted)).values())
    return 2 * common / (len(predicted) + len(wanted)) if common else 0.0


def _stems(text: str) -> list[str]:
    return [
        stem(word)
        for word in _DROPPED_WORDS.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()
    ]
