"""Scores of the web's benchmarks: answers in any script, and GAIA's own rule.

WebWalkerQA is half Chinese, which SQuAD's normalisation sees as one long word. Here texts are
brought to one form of their characters (NFKC), lose the punctuation of every script, and each
character of a script without spaces is a word, as in the evaluation of CMRC 2018.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from atommem.envs.scoring.metrics import NO_PUNCTUATION, exact_match, f1, sub_exact_match

WEB_SOURCES = ("gaia", "webwalkerqa", "asearcher", "webdancer", "browsecomp_plus")
"""Sources whose answers may be in any script."""
GAIA_SOURCE = WEB_SOURCES[0]
_CHARACTER = re.compile(r"([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff])")


def web_scores(answer: str | None, golds: Sequence[str]) -> dict[str, float]:
    """Return ``em``, ``f1`` and ``sub_em`` of an answer in any script."""
    predicted = None if answer is None else _spaced(answer)
    spaced = [_spaced(gold) for gold in golds]
    return {
        "em": exact_match(predicted, spaced),
        "f1": f1(predicted, spaced, "musique"),
        "sub_em": sub_exact_match(predicted, spaced),
    }


def _spaced(text: str) -> str:
    """Return `text` without punctuation, with spaces around each character that is a word."""
    same = unicodedata.normalize("NFKC", text)
    kept = "".join(
        character for character in same if not unicodedata.category(character).startswith("P")
    )
    # A text of nothing but punctuation stays: SQuAD's rule compares it as it is.
    return _CHARACTER.sub(r" \1 ", kept).strip() or same


def gaia_score(answer: str | None, golds: Sequence[str]) -> float:
    """Return 1.0 if `answer` is right by the rule of GAIA's ``scorer.py`` for one of `golds`.

    Numbers must be equal, without ``$``, ``%`` and ``,``. Where the gold answer has a comma or
    semicolon, both are lists of as many parts, compared in order: numbers as numbers, others as
    text with its punctuation. Other texts are compared without white space, punctuation and case.
    """
    if answer is None or not answer.strip():  # the original holds nothing equal to punctuation
        return 0.0
    return float(any(_gaia_equal(answer, gold) for gold in golds))


def _gaia_equal(answer: str, gold: str) -> bool:
    if _number(gold) is not None:
        return _gaia_equal_part(answer, gold)
    if re.search("[,;]", gold):
        given, right = re.split("[,;]", answer), re.split("[,;]", gold)
        return len(given) == len(right) and all(map(_gaia_equal_part, given, right))
    return _squeeze(answer.translate(NO_PUNCTUATION)) == _squeeze(gold.translate(NO_PUNCTUATION))


def _gaia_equal_part(answer: str, gold: str) -> bool:
    number = _number(gold)
    if number is None:
        return _squeeze(answer) == _squeeze(gold)
    found = _number(re.sub("[$%,]", "", answer))
    return number == (float("inf") if found is None else found)  # as in the original


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _squeeze(text: str) -> str:
    return re.sub(r"\s", "", text).lower()
