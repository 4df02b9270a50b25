"""Exact match, sub-EM and token F1, as the evaluation scripts of HotpotQA, 2WikiMultihopQA and MuSiQue define them.

All three normalise as SQuAD does and take the best score over the gold answers. They differ in F1 alone:

==================  ============================================  =========================
rule                yes / no / noanswer                           neither text keeps a token
==================  ============================================  =========================
``hotpotqa``        an all-or-nothing answer: on either side, 0   0 (see below)
                    unless both normalise to the same word
``musique``         words like any others                         1 (see below)
==================  ============================================  =========================

2WikiMultihopQA's script (v1.1) has HotpotQA's rule; `f1_rule` says which rule a source has.

One definition is ours, for all: an answer such as "A" or "!!!" normalises to nothing, and would by the letter of
the scripts be matched by any article or punctuation mark. Such an answer is matched only by the same text, letter
case and white space aside, and then EM and F1 are both 1. An empty prediction never earns anything.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Literal

F1Rule = Literal["hotpotqa", "musique"]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_WHOLE_ANSWERS = frozenset({"yes", "no", "noanswer"})


def normalize(text: str) -> str:
    """Lower case, without ASCII punctuation and English articles, white space collapsed (SQuAD's normalisation)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str | None, answers: Sequence[str]) -> float:
    """1.0 if `prediction` normalises to the same text as one of `answers` (gold and its aliases), else 0.0."""
    if prediction is None:
        return 0.0
    normalized = normalize(prediction)
    return float(any(_equal(prediction, normalized, answer) for answer in answers))


def f1(prediction: str | None, answers: Sequence[str], rule: F1Rule = "hotpotqa") -> float:
    """Harmonic mean of token precision and recall, in [0, 1], the best over `answers`.

    Args:
        prediction: What was answered; None or blank earns 0.
        answers: Gold answer and its aliases.
        rule: Whose script to follow (see the module's table).
    """
    if prediction is None:
        return 0.0
    normalized = normalize(prediction)
    return max((_f1(prediction, normalized, answer, rule) for answer in answers), default=0.0)


def sub_exact_match(prediction: str | None, answers: Sequence[str]) -> float:
    """1.0 if, normalised, the prediction contains one of `answers` or is contained in one, as MemAgent scores.

    Source: ``sub_em`` of MemAgent's ``taskutils/memory_eval``. Substrings need not be whole words there, and are not
    here. Two things are ours: it holds the prediction against the first answer only, and a prediction that normalises
    to nothing would be contained in every answer; here all answers count, and such a prediction earns what exact match
    gives it.
    """
    if prediction is None:
        return 0.0
    normalized = normalize(prediction)
    if not normalized:
        return exact_match(prediction, answers)
    golds = [normalize(answer) for answer in answers]
    return float(any(gold and (gold in normalized or normalized in gold) for gold in golds))


def f1_rule(source: str) -> F1Rule:
    """The F1 rule of a task's `source` (``hotpotqa``, ``2wikimultihopqa``, ``musique``, ...)."""
    return "musique" if "musique" in source else "hotpotqa"


def _equal(prediction: str, normalized: str, answer: str) -> bool:
    """Whether a prediction (raw and normalised) matches one gold answer."""
    gold = normalize(answer)
    if gold:
        return normalized == gold
    folded = _fold(prediction)
    return bool(folded) and folded == _fold(answer)


def _f1(prediction: str, normalized: str, answer: str, rule: F1Rule) -> float:
    gold = normalize(answer)
    if not gold:
        return float(_equal(prediction, normalized, answer))
    if (
        rule == "hotpotqa"
        and normalized != gold
        and (normalized in _WHOLE_ANSWERS or gold in _WHOLE_ANSWERS)
    ):
        return 0.0
    predicted_tokens, gold_tokens = normalized.split(), gold.split()
    common = sum((Counter(predicted_tokens) & Counter(gold_tokens)).values())
    # 2PR / (P + R) with P = common / predicted, R = common / gold; no token in common gives 0.
    return 2 * common / (len(predicted_tokens) + len(gold_tokens))


def _fold(text: str) -> str:
    return " ".join(text.lower().split())
