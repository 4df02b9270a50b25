"""Exact match, sub-EM, token F1 and abstention, as the scripts of the benchmarks define them.

HotpotQA, 2WikiMultihopQA and MuSiQue normalise as SQuAD does and take the best score over the gold
answers. They differ in F1: HotpotQA and 2WikiMultihopQA (v1.1) score yes, no and noanswer 0 unless
both sides normalise to the same word; for MuSiQue they are ordinary words (`f1_rule`).

One definition is ours: an answer such as "A" or "!!!" normalises to nothing, and the scripts would
match it with any article or punctuation mark. Here it matches only the same text, except for case
and white space, and EM and F1 are then 1. An empty prediction scores 0.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Literal

F1Rule = Literal["hotpotqa", "musique"]

ABSTENTION = "not mentioned"
_ABSTENTIONS = ("no information available", ABSTENTION)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_VERDICTS = frozenset({"yes", "no", "noanswer"})


def normalize(text: str) -> str:
    """Return text in SQuAD's normalisation: lower case, no punctuation, no articles."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def exact_match(prediction: str | None, answers: Sequence[str]) -> float:
    """Return 1.0 if `prediction` normalises to the same text as one of `answers`, else 0.0."""
    return float(prediction is not None and any(_equal(prediction, gold) for gold in answers))


def f1(prediction: str | None, answers: Sequence[str], rule: F1Rule = "hotpotqa") -> float:
    """Return the best token F1 over `answers`; None scores 0."""
    if prediction is None:
        return 0.0
    return max((_f1(prediction, gold, rule) for gold in answers), default=0.0)


def sub_exact_match(prediction: str | None, answers: Sequence[str]) -> float:
    """Return 1.0 if one of `answers` contains the prediction or is contained in it, normalised.

    Source: ``sub_em`` of MemAgent's ``taskutils/memory_eval``; substrings need not be whole words.
    Unlike there, all answers count, and a prediction that normalises to nothing scores as in
    `exact_match` instead of being contained in every answer.
    """
    normalized = normalize(prediction or "")
    if not normalized:
        return exact_match(prediction, answers)
    golds = [normalize(answer) for answer in answers]
    return float(any(gold and (gold in normalized or normalized in gold) for gold in golds))


def f1_rule(source: str) -> F1Rule:
    """Return the F1 rule of a task's source."""
    return "musique" if "musique" in source else "hotpotqa"


def _equal(prediction: str, answer: str) -> bool:
    gold = normalize(answer)
    if gold:
        return normalize(prediction) == gold
    words = prediction.lower().split()
    return words != [] and words == answer.lower().split()


def _f1(prediction: str, answer: str, rule: F1Rule) -> float:
    predicted, gold = normalize(prediction), normalize(answer)
    if not gold:
        return float(_equal(prediction, answer))
    if rule == "hotpotqa" and predicted != gold and not _VERDICTS.isdisjoint({predicted, gold}):
        return 0.0
    return token_f1(predicted.split(), gold.split())


def token_f1(predicted: Sequence[str], gold: Sequence[str]) -> float:
    """Return 2PR / (P + R) with P = common / predicted and R = common / gold."""
    common = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * common / (len(predicted) + len(gold)) if common else 0.0


def abstains(answer: str | None) -> bool:
    """Whether an answer says that the text does not tell, in the words of LoCoMo's script."""
    return answer is not None and any(phrase in answer.lower() for phrase in _ABSTENTIONS)


def hint(what: str) -> str:
    """Return what follows every question of a file in which some have no answer."""
    return f' (If the {what} does not tell, answer "{ABSTENTION}".)'
